//! The micro-kernel of the GEMM of prefill: products of tiles, with four tiles of accumulators.

use super::pack::Packer;
use super::shape::{STRIP_LINES, Tile};
use crate::device::cpu::gemm::amx::ahead::Ahead;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS, Tiles, tile, zero};

/// One strip of weights and one pair of row tiles.
pub(super) struct Block<'a> {
    /// `[step, tile, line]`.
    pub(super) weights: &'a [Line],
    /// `[step, plane, tile]`.
    pub(super) x: &'a [Tile],
    /// At least one.
    pub(super) steps: usize,
}

/// The weights and activations that are brought into cache meanwhile, some with each step.
pub(super) struct Soon<'a> {
    pub(super) weights: Packer<'a>,
    pub(super) x: Ahead,
}

impl Block<'_> {
    /// Sets the accumulators `sums`, four tiles, or if it is to `go_on` adds to them, with activations of `PLANES`
    /// planes, one or two.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    pub(super) fn multiply<const PLANES: usize>(
        &self,
        tiles: &Tiles,
        sums: &mut [Line],
        go_on: bool,
        soon: &mut Soon<'_>,
    ) {
        assert_eq!(tiles.row_bytes(), (LINE, LINE), "whole tiles");
        assert!(self.steps > 0 && self.weights.len() >= self.steps * STRIP_LINES);
        assert!(self.x.len() >= self.steps * 2 * PLANES && sums.len() >= 4 * TILE_ROWS);
        let sums = sums.as_mut_ptr();
        let mut w = self.weights.as_ptr().cast::<u8>();
        let mut x = self.x.as_ptr().cast::<u8>();
        // SAFETY: all tiles that are read and written are inside the slices by the lines above.
        unsafe {
            match go_on {
                true => tile!(
                    "tileloadd tmm0, [{c} + {s}]",
                    "tileloadd tmm1, [{c} + {s} + 1024]",
                    "tileloadd tmm2, [{c} + {s} + 2048]",
                    "tileloadd tmm3, [{c} + {s} + 3072]";
                    c = sums
                ),
                false => zero(tiles),
            }
            for _ in 0..self.steps {
                tile!(
                    "tileloadd tmm4, [{w} + {s}]",
                    "tileloadd tmm6, [{x} + {s}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{x} + {s} + 1024]";
                    w = w, x = x
                );
                soon.weights.advance();
                tile!(
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{w} + {s} + 1024]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7";
                    w = w
                );
                soon.x.prefetch_round();
                if PLANES == 2 {
                    tile!(
                        "tileloadd tmm6, [{x} + {s} + 2048]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{x} + {s} + 3072]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7";
                        x = x
                    );
                }
                w = w.wrapping_add(size_of::<Line>() * STRIP_LINES);
                x = x.wrapping_add(size_of::<Tile>() * 2 * PLANES);
            }
            tile!(
                "tilestored [{c} + {s}], tmm0",
                "tilestored [{c} + {s} + 1024], tmm1",
                "tilestored [{c} + {s} + 2048], tmm2",
                "tilestored [{c} + {s} + 3072], tmm3";
                c = sums
            );
        }
    }
}
