//! The integer GEMM of many rows, on processors with AVX512-VNNI: all outputs of a panel are one vector, and one
//! instruction multiplies and accumulates.

#![allow(clippy::needless_range_loop, reason = "sums are indexed by row throughout")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::activations::Tile;
use super::codes::joined;
use super::panel::{Held, OUTPUTS, STEP_BYTES};
use super::stored::LANES;
use super::task::Task;
use crate::device::cpu::isa::x86::Avx512Vnni;

/// Rows of a register tile at most: their integer accumulators and those in f32 take 24 of the 32 registers.
pub(super) const ROWS: usize = 12;

const _: () = assert!(OUTPUTS == 16, "a vector of outputs");

impl Task<'_> {
    /// All rows over the panel that is held: of bytes, or else of words.
    pub(super) fn wide_pass<const BYTES: bool>(&self, proof: Avx512Vnni, held: &Held<'_>) {
        let _: Avx512Vnni = proof;
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe { self.wide_rows::<BYTES>(held) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn wide_rows<const BYTES: bool>(&self, held: &Held<'_>) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (tile, rows) = self.x.tile(row);
            assert!(row + rows <= self.rows.end, "whole tiles: others have the rows behind");
            macro_rules! tile {
                ($($rows:literal)+) => {
                    match rows {
                        $($rows => self.wide_tile::<$rows, BYTES>(held, row, tile),)+
                        _ => self.wide_tile::<ROWS, BYTES>(held, row, tile),
                    }
                };
            }
            tile!(1 2 3 4 5 6 7 8 9 10 11);
            row += rows;
        }
    }

    /// A register tile: adds the products of what is held to the accumulators of the `R` rows of `tile`, which begin
    /// with `row`. Between panels, the accumulators lie in the result.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline(never)]
    fn wide_tile<const R: usize, const BYTES: bool>(
        &self,
        held: &Held<'_>,
        row: usize,
        tile: Tile<'_>,
    ) {
        let Held { first, ref groups, finished, .. } = *held;
        let count = OUTPUTS.min(self.outputs.end - first);
        let mask = ((1u32 << count) - 1) as u16;
        let mut y = [_mm512_setzero_ps(); R];
        if groups.start > 0 {
            for r in 0..R {
                // SAFETY: no other task has these elements, and this one holds one part at a time and wrote it before;
                // the mask has the lanes inside of it.
                y[r] = unsafe {
                    let part = self.target.written(row + r, first, count);
                    _mm512_maskz_loadu_ps(mask, part.as_ptr())
                };
            }
        }
        wide_chains::<R, BYTES>(held, tile, &mut y);
        if let Some(bias) = self.bias.filter(|_| finished) {
            // SAFETY: the mask has the lanes that are inside the bias.
            let bias = unsafe { _mm512_maskz_loadu_ps(mask, bias[first..][..count].as_ptr()) };
            for r in 0..R {
                y[r] = _mm512_add_ps(y[r], bias);
            }
        }
        for r in 0..R {
            // SAFETY: no other task has these elements, and this one holds one part at a time; the mask has the lanes
            // inside of it.
            unsafe {
                let part = self.target.part(row + r, first, count);
                _mm512_mask_storeu_ps(part.as_mut_ptr().cast(), mask, y[r]);
            }
        }
    }
}

/// Adds the products of `codes` and four bytes of each of `R` rows to the integer accumulators `dots`. Written out, so
/// that the addresses are those of one register.
///
/// # Safety
/// `R` times four bytes can be read at `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn multiply<const R: usize, const BYTES: bool>(
    dots: &mut [__m512i; R],
    codes: __m512i,
    x: *const u8,
) {
    macro_rules! rows {
        ($instruction:literal: $($row:literal)+) => {{
            $(if $row < R {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!($instruction, " {dot}, {codes}, dword ptr [{x} + {behind}]{{1to16}}"),
                        dot = inout(zmm_reg) dots[$row],
                        codes = in(zmm_reg) codes,
                        x = in(reg) x,
                        behind = const $row * STEP_BYTES,
                        options(pure, nostack, preserves_flags, readonly),
                    );
                }
            })+
        }};
        ($instruction:literal) => { rows!($instruction: 0 1 2 3 4 5 6 7 8 9 10 11) };
    }
    match BYTES {
        true => rows!("vpdpbusd"),
        false => rows!("vpdpwssd"),
    }
}

/// The micro-kernel: adds the products of what is held to the accumulators `y` of the `R` rows of `tile`.
///
/// # Panics
/// If the tile has fewer.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn wide_chains<const R: usize, const BYTES: bool>(
    held: &Held<'_>,
    tile: Tile<'_>,
    y: &mut [__m512; R],
) {
    let Held { panel, ref groups, runs, .. } = *held;
    let first = held.first_step() * R * STEP_BYTES;
    let x = &tile.codes[first..][..held.steps() * R * STEP_BYTES];
    let params = groups.start * R..groups.end * R;
    let scales_of = &tile.scales[params.clone()].as_chunks::<R>().0[..groups.len()];
    let sums_of = &tile.sums[params].as_chunks::<R>().0[..groups.len()];
    for group in 0..groups.len() {
        let mut dots = [_mm512_setzero_si512(); R];
        for run in held.runs_of(group) {
            let mut x = x.as_ptr().wrapping_add(run * R * STEP_BYTES);
            for step in run..run + runs.steps {
                // SAFETY: the steps of a group of those held, each an aligned vector, and their activations.
                unsafe {
                    let codes = _mm512_load_si512(panel.steps.as_ptr().add(step).cast());
                    multiply::<R, BYTES>(&mut dots, codes, x);
                }
                x = x.wrapping_add(R * STEP_BYTES);
            }
        }
        // SAFETY: the group is one of as many as there are of each.
        let ([first, last], scales_of, sums_of) = unsafe {
            (
                panel.params.get_unchecked(group / LANES),
                scales_of.get_unchecked(group),
                sums_of.get_unchecked(group),
            )
        };
        let scales = joined(first.scales[group % LANES], last.scales[group % LANES]);
        let biases = joined(first.biases[group % LANES], last.biases[group % LANES]);
        add_up(y, [scales, biases], &dots, [scales_of, sums_of]);
    }
}

/// Adds the products of a group to the accumulators `y`: scales of weights and activations times `dots`, then biases
/// times sums. Written out, as compilers convert all `dots` to f32 first, for which the registers do not suffice.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_up<const R: usize>(
    y: &mut [__m512; R],
    [scales, biases]: [__m512; 2],
    dots: &[__m512i; R],
    [scales_of, sums_of]: [&[f32; R]; 2],
) {
    macro_rules! rows {
        ($($row:literal)+) => {{
            $(if $row < R {
                let _scale: __m512;
                // SAFETY: as many numbers are read as there are rows.
                unsafe {
                    asm!(
                        "vmulps {scale}, {scales}, dword ptr [{scales_of} + {behind}]{{1to16}}",
                        "vcvtdq2ps {dot}, {dot}",
                        "vfmadd231ps {y}, {scale}, {dot}",
                        "vfmadd231ps {y}, {biases}, dword ptr [{sums_of} + {behind}]{{1to16}}",
                        y = inout(zmm_reg) y[$row],
                        dot = inout(zmm_reg) dots[$row] => _,
                        scale = out(zmm_reg) _scale,
                        scales = in(zmm_reg) scales,
                        biases = in(zmm_reg) biases,
                        scales_of = in(reg) scales_of.as_ptr(),
                        sums_of = in(reg) sums_of.as_ptr(),
                        behind = const $row * size_of::<f32>(),
                        options(pure, nostack, readonly),
                    );
                }
            })+
        }};
    }
    rows!(0 1 2 3 4 5 6 7 8 9 10 11);
}
