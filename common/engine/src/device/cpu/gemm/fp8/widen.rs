//! FP8 outputs dequantized to f32, for the GEMM of many rows.

use std::ops::Range;

use super::halves::{CHUNK, Halves};
use super::matrix::Fp8Matrix;
use crate::device::cpu::element::{Element, F32};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

/// Dequantizes some outputs to `to` as little-endian f32: the weights that [`Direct`](super::direct::Direct)
/// multiplies.
pub(super) struct Widen<'a> {
    pub(super) weight: Fp8Matrix<'a>,
    pub(super) outputs: Range<usize>,
    /// `[outputs, inputs]`.
    pub(super) to: &'a mut [u8],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Widen { weight, outputs, to } = self;
        let (inputs, width) = (weight.inputs, weight.width());
        let mut halves = Halves::ZERO;
        for (output, to) in outputs.zip(to.chunks_exact_mut(inputs * F32::BYTES)) {
            let row = weight.row(output);
            for (start, to) in (0..).step_by(CHUNK).zip(to.chunks_mut(CHUNK * F32::BYTES)) {
                // The rows that follow are ones that processors prefetch by themselves.
                halves.set(simd, &row, start, row.numbers[start..].as_ptr());
                let blocks = to.chunks_mut(width.min(CHUNK) * F32::BYTES);
                let halves = halves.vectors().chunks(width.div_ceil(LANES));
                for (block, (from, to)) in (start / width..).zip(halves.zip(blocks)) {
                    let factor = simd.splat(row.factor(block));
                    for (from, to) in from.iter().zip(to.chunks_mut(LANES * F32::BYTES)) {
                        let mut lanes = [0.0; LANES];
                        simd.store(simd.mul(simd.load_f16(from), factor), &mut lanes);
                        match to.first_chunk_mut::<{ LANES * F32::BYTES }>() {
                            Some(whole) => F32::store(&lanes, whole),
                            None => F32::store(&lanes[..to.len() / F32::BYTES], to),
                        }
                    }
                }
            }
        }
    }
}
