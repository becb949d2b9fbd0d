//! GEMM and GEMV in f32: weights are dequantized a few outputs at a time and multiplied as f32 matrices are.

use std::cell::RefCell;
use std::ops::Range;

use cake_checkpoint::FloatType;

use super::call::Call;
use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{Element, F32, number};
use crate::device::cpu::gemm::float::{
    self, Held, Product, decoded_scratch, outputs_at_once, with_decoded, with_held,
};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{AffineMatrix, Bits, Matrix, Weight, WeightKind};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Tasks;

/// The GEMM and GEMV in f32 with affine matrices, dequantized some outputs at a time.
pub(crate) struct Dequantized;

// SAFETY: `Task` writes all rows of its outputs, and `by_outputs` gives the tasks all outputs.
unsafe impl Gemm for Dequantized {
    fn form(&self, _: WeightKind) -> Form {
        Form::F32
    }

    fn prepare<'x>(&self, _: Tier, _: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        Prepared::plain(x)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let call = Call::new(weight, bias, x.values());
        let task = move |outputs, target| {
            with_decoded(|numbers, bytes| {
                with_held(|held| tier.run(Task { call, outputs, target, numbers, bytes, held }));
            });
        };
        call.by_outputs(call.share(outputs_at_once(call.rows())), y, task)
    }

    fn scratch(&self, inputs: u64, _: u64) -> Scratch {
        decoded_scratch(inputs)
    }
}

/// One task of the product: all rows, some outputs.
struct Task<'a> {
    call: Call<'a>,
    outputs: Range<usize>,
    target: Target<'a>,
    /// Buffers for some dequantized outputs, and for the bytes that are multiplied,
    numbers: &'a mut Vec<f32>,
    bytes: &'a mut Vec<u8>,
    /// and for products of many rows.
    held: &'a RefCell<Held>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Call { weight, bias, x, .. } = self.call;
        let at_once = outputs_at_once(self.call.rows());
        let values = kept(self.numbers, at_once * weight.inputs, 0.0);
        let bytes = kept(self.bytes, values.len() * F32::BYTES, 0);
        let mut origin = self.outputs.start;
        while origin < self.outputs.end {
            let range = origin..(origin + at_once).min(self.outputs.end);
            let values = &mut values[..range.len() * weight.inputs];
            let bytes = &mut bytes[..values.len() * F32::BYTES];
            Dequantize { weight: weight.rows(range.clone()), values }.run(simd);
            F32::store(values, bytes);
            let weight = Matrix { bytes, float: FloatType::F32, inputs: weight.inputs };
            let (rows, target) = (self.call.rows(), self.target);
            let (prefetch, end) = (None, range.end);
            let call = float::Call { weight, origin, bias, x, rows, range, target, prefetch };
            Product { call, held: self.held }.run(simd);
            origin = end;
        }
    }
}

/// Dequantizes: the weights as f32, `[outputs, inputs]`, as [`Numerics::Exact`](crate::options::Numerics::Exact)
/// multiplies them.
pub(crate) fn dequantize(tier: Tier, weight: AffineMatrix<'_>) -> Vec<f32> {
    let mut values = vec![0.0; weight.outputs() * weight.inputs];
    tier.run(Dequantize { weight, values: &mut values });
    values
}

/// Dequantizes all of `weight` into `values`, `[outputs, inputs]`.
struct Dequantize<'a> {
    weight: AffineMatrix<'a>,
    values: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let AffineMatrix { params, bits, group, .. } = self.weight;
        let codes = self.weight.codes.chunks_exact(group / bits.per_byte());
        let values = self.values.chunks_exact_mut(group);
        for (index, (codes, values)) in codes.zip(values).enumerate() {
            let scale = simd.splat(number(params, self.weight.scales, index));
            let bias = simd.splat(number(params, self.weight.biases, index));
            let values = values.as_chunks_mut().0;
            let widen = |codes: [f32; LANES], to: &mut [f32; LANES]| {
                simd.store(simd.mul_add(scale, simd.load(&codes), bias), to);
            };
            match bits {
                Bits::Four => {
                    for (codes, to) in codes.as_chunks().0.iter().zip(values) {
                        widen(nibbles(codes), to);
                    }
                }
                Bits::Six | Bits::Eight => {
                    for (codes, to) in codes.as_chunks().0.iter().zip(values) {
                        widen(bytes(codes), to);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn nibbles(codes: &[u8; LANES / 2]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (lane, code) in lanes.iter_mut().enumerate() {
        *code = f32::from((codes[lane / 2] >> (4 * (lane % 2))) & 0xf);
    }
    lanes
}

#[inline(always)]
fn bytes(codes: &[u8; LANES]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (lane, code) in lanes.iter_mut().zip(codes) {
        *lane = f32::from(*code);
    }
    lanes
}
