//! Many rows, on processors with AVX512-VNNI: all outputs of a panel are one vector, and one instruction multiplies and
//! adds up.

#![allow(clippy::needless_range_loop, reason = "sums are indexed by row throughout")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::codes::joined;
use super::panel::{Held, OUTPUTS, STEP_BYTES};
use super::stored::LANES;
use super::task::Task;
use crate::device::cpu::isa::x86::Avx512Vnni;

/// Rows computed together at most: their sums and their results take 24 of the 32 registers.
pub(super) const ROWS: usize = 12;

const _: () = assert!(OUTPUTS == 16, "a vector of outputs");

impl Task<'_> {
    /// All rows over what is held: bytes, or else words.
    pub(super) fn wide_pass<const BYTES: bool>(&self, proof: Avx512Vnni, held: &Held<'_>) {
        let _: Avx512Vnni = proof;
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe { self.wide_rows::<BYTES>(held) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn wide_rows<const BYTES: bool>(&self, held: &Held<'_>) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            macro_rules! tile {
                ($($rows:literal)+) => {
                    // As even as can be: two tiles of eight rows rather than of twelve and four.
                    match left.div_ceil(left.div_ceil(ROWS)) {
                        $($rows => self.wide_tile::<$rows, BYTES>(held, row),)+
                        _ => self.wide_tile::<ROWS, BYTES>(held, row),
                    }
                };
            }
            row += tile!(1 2 3 4 5 6 7 8 9 10 11);
        }
    }

    /// Continues the chains of `R` rows from `row` on with what is held; returns `R`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn wide_tile<const R: usize, const BYTES: bool>(&self, held: &Held<'_>, row: usize) -> usize {
        let Held { first, ref groups, finished, .. } = *held;
        let count = OUTPUTS.min(self.outputs.end - first);
        let mask = ((1u32 << count) - 1) as u16;
        let mut y = [_mm512_setzero_ps(); R];
        if groups.start > 0 {
            for r in 0..R {
                // SAFETY: no other task has these elements, and this one holds one part at a time and wrote it before; the
                // mask has the lanes inside of it.
                y[r] = unsafe {
                    let part = self.target.written(row + r, first, count);
                    _mm512_maskz_loadu_ps(mask, part.as_ptr())
                };
            }
        }
        y = wide_chains::<R, BYTES>(held, &Rows::of(self, held, row), y);
        if let Some(bias) = self.bias.filter(|_| finished) {
            // SAFETY: the mask has the lanes that are inside the bias.
            let bias = unsafe { _mm512_maskz_loadu_ps(mask, bias[first..][..count].as_ptr()) };
            for r in 0..R {
                y[r] = _mm512_add_ps(y[r], bias);
            }
        }
        for r in 0..R {
            // SAFETY: no other task has these elements, and this one holds one part at a time; the mask has the lanes inside
            // of it.
            unsafe {
                let part = self.target.part(row + r, first, count);
                _mm512_mask_storeu_ps(part.as_mut_ptr().cast(), mask, y[r]);
            }
        }
        R
    }
}

/// What is multiplied with what is held: activations of some rows, each as far behind the one before.
struct Rows<'a> {
    /// The bytes of the codes from the panel's first step on, and bytes from one row to the next.
    codes: &'a [u8],
    code_bytes: usize,
    /// Scales, and these times the sums of codes, from the first group that is held on, and how many lie between rows.
    scales: &'a [f32],
    sums: &'a [f32],
    params: usize,
}

impl<'a> Rows<'a> {
    /// Those from `row` on.
    fn of(task: &'a Task<'_>, held: &Held<'_>, row: usize) -> Rows<'a> {
        let (codes, code_bytes) = task.x.lanes(row);
        let (scales, sums, params) = task.x.params(row);
        let (codes, first) = (&codes[held.first_step() * STEP_BYTES..], held.groups.start);
        Rows { codes, code_bytes, scales: &scales[first..], sums: &sums[first..], params }
    }

    /// Sees that there are as many rows of what is held.
    ///
    /// # Panics
    /// If there are not.
    fn check(&self, held: &Held<'_>, rows: usize) {
        let (steps, count) = (held.steps(), held.groups.len());
        let params = (rows - 1) * self.params + count;
        assert!((rows - 1) * self.code_bytes + steps * STEP_BYTES <= self.codes.len());
        assert!(params <= self.scales.len() && params <= self.sums.len(), "all rows and groups");
    }
}

/// Rows whose addresses are computed from one of them.
const NEIGHBOURS: usize = 3;

/// Adds the products of `codes` and the activations of each of `R` rows to `dots`. Written out, with addresses that the
/// instructions compute themselves: compilers keep one in a register for each of the rows, of which there are too few.
///
/// # Safety
/// Four bytes can be read at `x` and `stride` and twice that behind it, as far as there are such rows.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn multiply<const R: usize, const BYTES: bool>(
    dots: &mut [__m512i; R],
    codes: __m512i,
    x: &[*const u8; ROWS / NEIGHBOURS],
    stride: usize,
) {
    macro_rules! rows {
        ($instruction:literal: $($row:literal at $behind:literal),+) => {{
            $(if $row < R {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!($instruction, " {dot}, {codes}, dword ptr [{x}", $behind, "]{{1to16}} /* {stride} */"),
                        dot = inout(zmm_reg) dots[$row],
                        codes = in(zmm_reg) codes,
                        x = in(reg) x[$row / NEIGHBOURS],
                        stride = in(reg) stride,
                        options(pure, nostack, preserves_flags, readonly),
                    );
                }
            })+
        }};
        ($instruction:literal) => {
            rows!($instruction:
                0 at "", 1 at " + {stride}", 2 at " + 2 * {stride}",
                3 at "", 4 at " + {stride}", 5 at " + 2 * {stride}",
                6 at "", 7 at " + {stride}", 8 at " + 2 * {stride}",
                9 at "", 10 at " + {stride}", 11 at " + 2 * {stride}")
        };
    }
    match BYTES {
        true => rows!("vpdpbusd"),
        false => rows!("vpdpwssd"),
    }
}

/// Continues the chains `y` of `R` rows with what is held.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline(never)]
fn wide_chains<const R: usize, const BYTES: bool>(
    held: &Held<'_>,
    rows: &Rows<'_>,
    mut y: [__m512; R],
) -> [__m512; R] {
    let Held { panel, ref groups, runs, .. } = *held;
    rows.check(held, R);
    let stride = rows.code_bytes;
    for group in 0..groups.len() {
        let mut dots = [_mm512_setzero_si512(); R];
        for run in held.runs_of(group) {
            let mut x = [rows.codes.as_ptr(); ROWS / NEIGHBOURS];
            for (at, x) in x.iter_mut().enumerate() {
                *x = x.wrapping_add(at * NEIGHBOURS * stride + run * STEP_BYTES);
            }
            for step in run..run + runs.steps {
                // SAFETY: the steps of a group of those that `check` saw, each an aligned vector, and their activations.
                unsafe {
                    let codes = _mm512_load_si512(panel.steps.as_ptr().add(step).cast());
                    multiply::<R, BYTES>(&mut dots, codes, &x, stride);
                }
                for x in &mut x {
                    *x = x.wrapping_add(STEP_BYTES);
                }
            }
        }
        // SAFETY: the group is one of as many as `check` saw of each.
        let [first, last] = unsafe { panel.params.get_unchecked(group / LANES) };
        let scales = joined(first.scales[group % LANES], last.scales[group % LANES]);
        let biases = joined(first.biases[group % LANES], last.biases[group % LANES]);
        for r in 0..R {
            let at = r * rows.params + group;
            // SAFETY: as above.
            let (scale, sum) =
                unsafe { (*rows.scales.get_unchecked(at), *rows.sums.get_unchecked(at)) };
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(scale));
            y[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dots[r]), y[r]);
            y[r] = _mm512_fmadd_ps(biases, _mm512_set1_ps(sum), y[r]);
        }
    }
    y
}
