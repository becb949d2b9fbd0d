//! The GEMM of few rows of prefill: they pass over weights in bf16 in place, as they lie in memory. Accumulators
//! are those that `block` makes.

use std::arch::asm;

use super::in_place::{InPlace, Prefetches, Step};
use super::shape::{PAIR, STRIP, Tile};
use super::task::Task;
use crate::device::cpu::gemm::weight::Matrix;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS, Tiles, tile, zero};

impl Task<'_> {
    /// All of the task: one strip of outputs after the other, beside which all rows pass.
    #[target_feature(enable = "avx512f")]
    pub(super) fn run_in_place(&self, tiles: &Tiles, weight: Matrix<'_>) {
        assert_eq!(tiles.row_bytes(), (LINE, LINE), "whole tiles");
        let row_bytes = weight.row_bytes();
        for first in self.outputs.clone().step_by(STRIP) {
            let end = (first + STRIP).min(self.outputs.end);
            let weights = &weight.bytes[first * row_bytes..end * row_bytes];
            for pair in 0..self.x.rows.div_ceil(PAIR) {
                // The first pair brings weights near, where the others find them.
                let strip = InPlace { weights, row_bytes, prefetch: pair == 0 };
                let sums = self.multiply_in_place(tiles, strip, pair);
                self.finish(first, pair, sums.as_flattened());
            }
        }
    }

    /// The accumulators of a strip and a pair of row tiles, over all inputs.
    #[inline(always)]
    fn multiply_in_place(&self, tiles: &Tiles, strip: InPlace<'_>, pair: usize) -> [Tile; 4] {
        let planes = self.x.precision.planes();
        let (x, _): (&[[Tile; 2]], _) = self.x.pair(pair, &(0..self.x.steps)).as_chunks();
        let both = self.x.rows - pair * PAIR > TILE_ROWS;
        zero(tiles);
        strip.walk(|step, prefetches| {
            let x = &x[step.index * planes..][..planes];
            multiply(tiles, x, both, step, prefetches);
        });
        let mut sums = [[Line::ZERO; TILE_ROWS]; 4];
        // SAFETY: there are tile registers, and room for four whole tiles.
        unsafe {
            tile!(
                "tilestored [{to} + {s}], tmm0",
                "tilestored [{to} + {s} + 1024], tmm1",
                "tilestored [{to} + {s} + 2048], tmm2",
                "tilestored [{to} + {s} + 3072], tmm3";
                to = sums.as_mut_ptr()
            );
        }
        sums
    }
}

/// Adds the products of both halves of a strip with the tile that lies so many bytes behind the beginning of a
/// plane: it goes to register `$x`, the accumulators are `$first` and `$second`.
macro_rules! products {
    ($plane:ident, $at:literal, $x:tt, $first:tt, $second:tt) => {
        asm!(
            concat!("tileloadd ", $x, ", [{x} + {s} + ", $at, "]"),
            concat!("tdpbf16ps ", $first, ", tmm4, ", $x),
            concat!("tdpbf16ps ", $second, ", tmm5, ", $x),
            x = in(reg) $plane.as_ptr(), s = in(reg) LINE,
            out($first) _, out($second) _, out($x) _,
            options(nostack, preserves_flags, readonly),
        )
    };
}

/// The micro-kernel: adds the products of a step to the accumulators of a strip, `x` being the planes of that step;
/// those of the second tile of the pair only if `both`.
#[inline(always)]
fn multiply(_: &Tiles, x: &[[Tile; 2]], both: bool, step: Step, mut prefetches: Prefetches) {
    let (first, stride) = step.half(false);
    let (second, _) = step.half(true);
    // SAFETY: there are tile registers; `Step` has rows of whole lines.
    unsafe {
        asm!(
            "tileloadd tmm4, [{first} + {stride}]",
            first = in(reg) first, stride = in(reg) stride,
            out("tmm4") _,
            options(nostack, preserves_flags, readonly),
        );
        prefetches.one();
        asm!(
            "tileloadd tmm5, [{second} + {stride}]",
            second = in(reg) second, stride = in(reg) stride,
            out("tmm5") _,
            options(nostack, preserves_flags, readonly),
        );
    }
    for plane in x {
        // SAFETY: there are tile registers; a plane is two whole tiles.
        unsafe {
            products!(plane, "0", "tmm6", "tmm0", "tmm2");
            if both {
                products!(plane, "1024", "tmm7", "tmm1", "tmm3");
            }
        }
    }
    prefetches.rest();
}
