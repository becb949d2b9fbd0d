//! Whole-number products with AVX512-VNNI, which multiplies four pairs of bytes per lane.
//!
//! With few rows (`direct`) weights are multiplied as they lie and the sums are transposed; with
//! many (`panel`) weights are transposed first and all rows pass over them.

pub(crate) mod direct;
mod panel;
pub(crate) mod task;

use self::direct::DIRECT_ROWS;
use super::activations::{Activations, Layout, row_bytes};
use super::call::Call;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Encoding, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::Avx512;
use crate::device::cpu::pool::Tasks;

/// The product of whole numbers, by instructions that multiply bytes.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

// SAFETY: `direct` writes as many rows as it is given here, of outputs of which `by_outputs` gives the tasks all; `panel`
// sets the result to zero before any task adds to it.
unsafe impl Gemm for Vnni {
    fn form(&self, encoding: Encoding) -> Form {
        Form::Bytes(encoding.affine())
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        let codes = Activations::quantize(tier, &Call::new(*weight, None, x), Layout::Planes);
        Prepared::new(x, self.form(weight.encoding()), codes)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let proof = tier.avx512().and_then(Avx512::vnni);
        let proof = proof.expect("the table gives this kernel to processors that multiply bytes");
        let call = Call::new(weight, bias, x.values());
        let x = x.made(self.form(weight.encoding()));
        match call.rows() {
            ..=DIRECT_ROWS => direct::matmul(proof, call, x, y),
            _ => panel::matmul(proof, call, x, y),
        }
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let activations = row_bytes(inputs).saturating_mul(rows);
        Scratch { activations, thread: panel::PANEL_BYTES, buffers: "affine panel" }
    }
}
