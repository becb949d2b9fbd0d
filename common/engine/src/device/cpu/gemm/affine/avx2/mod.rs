//! Whole-number products with AVX2, which multiplies 16 pairs of words and adds up neighbours.
//!
//! Codes are widened to words in registers. With few rows (`direct`) they are multiplied as they lie and the sums are
//! transposed; with many (`panel`) they are transposed first and all rows pass over them. How the codes, scales and biases
//! of an encoding come into registers is a type of its own (`Stored`); nothing else depends on it.

mod blocks;
mod direct;
mod lanes;
mod packed;
mod panel;
mod product;
mod stored;
mod task;

use self::blocks::Blocks;
use self::packed::{Bytes, Nibbles};
use self::product::Product;
use cake_checkpoint::GgmlType;

use super::activations::{Activations, Layout, row_bytes};
use super::call::Call;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Bits, Coded, Encoding, SHORT_GROUP, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::Avx2;
use crate::device::cpu::pool::Tasks;

/// The product of whole numbers with packed matrices, by instructions that multiply words.
#[derive(Clone, Copy)]
pub(crate) struct WordPairs;

// SAFETY: `Product::tasks` gives the tasks all rows of all outputs, and each writes all of its own.
unsafe impl Gemm for WordPairs {
    fn form(&self, encoding: Encoding) -> Form {
        form(encoding)
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        prepare(tier, weight, x)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, _, parallel) = weight.check(x.values(), bias);
        let x = x.made(form(weight.encoding()));
        let weight = weight.affine();
        let call = Product { proof: proof(tier), rows, parallel, bias, x, y };
        match (weight.bits, weight.group) {
            (Bits::Four, 32) => call.tasks(Nibbles::<32>(weight)),
            (Bits::Four, 64) => call.tasks(Nibbles::<64>(weight)),
            (Bits::Four, _) => call.tasks(Nibbles::<128>(weight)),
            (Bits::Eight, SHORT_GROUP) => call.tasks(Bytes::<SHORT_GROUP>(weight)),
            (Bits::Eight, 32) => call.tasks(Bytes::<32>(weight)),
            (Bits::Eight, 64) => call.tasks(Bytes::<64>(weight)),
            (Bits::Eight, _) => call.tasks(Bytes::<128>(weight)),
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        scratch(inputs, rows)
    }
}

/// The same with matrices of GGUF's blocks, in place.
pub(crate) struct BlockPairs;

// SAFETY: as above.
unsafe impl Gemm for BlockPairs {
    fn form(&self, encoding: Encoding) -> Form {
        form(encoding)
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        prepare(tier, weight, x)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, _, parallel) = weight.check(x.values(), bias);
        let x = x.made(form(weight.encoding()));
        let Coded { bytes, outputs, inputs, blocks, .. } = weight.coded();
        let product = Product { proof: proof(tier), rows, parallel, bias, x, y };
        macro_rules! tasks {
            ($block:ident) => {
                product.tasks(Blocks::<blocks::$block>::new(bytes, outputs, inputs))
            };
        }
        match blocks {
            Some(GgmlType::Q4_0) => tasks!(Q4_0),
            Some(GgmlType::Q4_1) => tasks!(Q4_1),
            Some(GgmlType::Q5_0) => tasks!(Q5_0),
            Some(GgmlType::Q5_1) => tasks!(Q5_1),
            Some(GgmlType::Q8_0) => tasks!(Q8_0),
            Some(GgmlType::Q4K) => tasks!(Q4K),
            Some(GgmlType::Q5K) => tasks!(Q5K),
            Some(GgmlType::Q6K) => tasks!(Q6K),
            _ => unreachable!("the table gives other types to other kernels"),
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        scratch(inputs, rows)
    }
}

fn form(encoding: Encoding) -> Form {
    let (bits, group) = encoding.affine();
    Form::Lanes { bits, group }
}

fn prepare<'x>(tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
    let codes = Activations::quantize(tier, &Call::new(*weight, None, x), Layout::Lanes);
    Prepared::new(x, form(weight.encoding()), codes)
}

fn scratch(inputs: u64, rows: u64) -> Scratch {
    let activations = row_bytes(inputs).saturating_mul(rows);
    Scratch { activations, thread: panel::PANEL_BYTES, buffers: "word panel" }
}

fn proof(tier: Tier) -> Avx2 {
    tier.avx2().expect("the table gives these kernels to processors that multiply words")
}
