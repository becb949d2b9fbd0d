//! The assembly that multiplies tiles.

use std::arch::asm;

use super::super::super::x86::Line;
use super::super::ahead::Ahead;
use super::super::{LINE, TILE_ROWS};
use super::{STRIP_LINES, Tile};

/// One strip of weights and one pair of row tiles.
pub(super) struct Block<'a> {
    /// `[step, tile, line]`.
    pub(super) weights: &'a [Line],
    /// `[step, plane, tile]`.
    pub(super) x: &'a [Tile],
    /// What to ask memory for, a line of each row per step.
    pub(super) ahead: Ahead,
    /// At least one.
    pub(super) steps: usize,
}

/// The assembly of a block: sets `sums`, four tiles, or continues them. The instructions at the end
/// are those of a step between its first plane and its end.
macro_rules! multiply {
    ($block:ident, $sums:ident, $go_on:ident, $planes:literal, $($second:literal),*) => {{
        assert!($block.steps > 0 && $block.weights.len() >= $block.steps * STRIP_LINES);
        assert!($block.x.len() >= $block.steps * 2 * $planes && $sums.len() >= 4 * TILE_ROWS);
        // SAFETY: all tiles are inside the slices by the lines above; prefetching touches nothing.
        unsafe {
            let sums = $sums.as_mut_ptr().cast::<u8>();
            asm!(
                "test {go_on}, {go_on}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {s}]",
                "tileloadd tmm1, [{c} + {s} + 1024]",
                "tileloadd tmm2, [{c} + {s} + 2048]",
                "tileloadd tmm3, [{c} + {s} + 3072]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{w} + {s}]",
                "tileloadd tmm6, [{x} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{x} + {s} + 1024]",
                "mov {row}, {ahead}",
                "mov {rows}, {count}",
                "test {rows}, {rows}",
                "jz 5f",
                "4:",
                "prefetcht1 [{row}]",
                "add {row}, {stride}",
                "dec {rows}",
                "jnz 4b",
                "5:",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{w} + {s} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                $($second,)*
                "add {w}, 2048",
                concat!("add {x}, 2048*", $planes),
                "add {ahead}, 64",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c} + {s}], tmm0",
                "tilestored [{c} + {s} + 1024], tmm1",
                "tilestored [{c} + {s} + 2048], tmm2",
                "tilestored [{c} + {s} + 3072], tmm3",
                w = inout(reg) $block.weights.as_ptr() => _,
                x = inout(reg) $block.x.as_ptr() => _,
                ahead = inout(reg) $block.ahead.row => _,
                count = in(reg) $block.ahead.count,
                stride = in(reg) $block.ahead.stride,
                row = out(reg) _,
                rows = out(reg) _,
                n = inout(reg) $block.steps => _,
                c = in(reg) sums,
                s = in(reg) LINE,
                go_on = in(reg) u64::from($go_on),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }};
}

impl Block<'_> {
    /// Sets `sums`, four tiles, or continues them, with activations of one plane.
    ///
    /// # Safety
    /// The tile registers are set up for whole tiles.
    pub(super) unsafe fn multiply(&self, sums: &mut [Line], go_on: bool) {
        multiply!(self, sums, go_on, 1,);
    }

    /// [`Block::multiply`] with activations of two planes.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn multiply_planes(&self, sums: &mut [Line], go_on: bool) {
        multiply!(
            self,
            sums,
            go_on,
            2,
            "tileloadd tmm6, [{x} + {s} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{x} + {s} + 3072]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7"
        );
    }
}
