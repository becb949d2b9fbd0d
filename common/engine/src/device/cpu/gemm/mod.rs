//! Products of activations with stored matrices.

pub(crate) mod affine;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod float;
pub(crate) mod inputs;
#[cfg(target_arch = "x86_64")]
pub(crate) mod panel;
pub(crate) mod precision;
pub(crate) mod target;
pub(crate) mod weight;

use self::affine::affine_matmul;
use self::float::matmul;
use self::inputs::Inputs;
use self::precision::Precision;
use self::weight::{AffineMatrix, Matrix};
use crate::device::cpu::buffer::Unset;
use crate::device::cpu::element::FloatType;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Tasks;
use crate::options::Numerics;

/// [`matmul()`] for rows of a prompt: where the processor multiplies pairs of bf16, activations have
/// this precision beside weights in bf16. Of one [`Inputs`] all products are in the same precision.
pub(crate) fn prompt_matmul<'a>(
    tier: Tier,
    precision: Precision,
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Inputs<'a>,
    y: &'a mut Unset,
) -> Tasks<'a> {
    // There is nothing more to round beside weights in bf16.
    let precision = if precision == Precision::Bf16Both { Precision::Bf16 } else { precision };
    #[cfg(target_arch = "x86_64")]
    match (tier, weight.float) {
        (Tier::Amx(proof), FloatType::Bf16) => {
            let weight = amx::float::Weights::Bf16(weight);
            return amx::float::float_matmul(proof, precision, weight, bias, x, y);
        }
        (Tier::Avx512(avx512), FloatType::Bf16) => {
            if let Some(proof) = avx512.bf16() {
                return panel::panel_matmul_bf16(proof, precision, weight, bias, x, y);
            }
        }
        _ => {}
    }
    let _ = precision; // Otherwise, all of its bits.
    matmul(tier, weight, bias, x, y)
}

/// Whether [`prompt_affine_matmul`] rounds packed weights in this precision: activations are then made ready
/// for another kernel.
pub(crate) fn rounds_packed(tier: Tier, precision: Option<Precision>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Tier::Amx(_) = tier {
        return precision == Some(Precision::Bf16Both);
    }
    let _ = (tier, precision);
    false
}

/// [`affine_matmul`] for rows of a prompt, in the arithmetic of [`Numerics::Fast`]: where activations may
/// be rounded to bf16 and the processor has tile registers, weights are rounded to bf16, too. That
/// leaves no scales and biases to the product.
///
/// [`Numerics::Fast`]: crate::options::Numerics::Fast
pub(crate) fn prompt_affine_matmul<'a>(
    tier: Tier,
    precision: Precision,
    weight: AffineMatrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Inputs<'a>,
    y: &'a mut Unset,
) -> Tasks<'a> {
    #[cfg(target_arch = "x86_64")]
    if let Tier::Amx(proof) = tier
        && rounds_packed(tier, Some(precision))
    {
        let weight = amx::float::Weights::Affine(weight);
        return amx::float::float_matmul(proof, Precision::Bf16, weight, bias, x, y);
    }
    let _ = precision; // Otherwise, all that `affine_matmul` takes.
    affine_matmul(tier, Numerics::Fast, weight, bias, x, y)
}

/// [`matmul()`] for generated rows: on processors with tile registers, activations have
/// [`Precision::Bf16x2`] beside weights in bf16, which makes eight rows as fast as one.
pub(crate) fn generated_matmul<'a>(
    tier: Tier,
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Inputs<'a>,
    y: &'a mut Unset,
) -> Tasks<'a> {
    #[cfg(target_arch = "x86_64")]
    if let (Tier::Amx(proof), FloatType::Bf16) = (tier, weight.float) {
        return amx::float::few_float_matmul(proof, weight, bias, x, y);
    }
    matmul(tier, weight, bias, x, y)
}

/// Upper bounds of the bytes that [`prompt_matmul`], [`generated_matmul`] and [`affine_matmul`] hold
/// beside their arguments and their result: for `rows` rows of activations of so many inputs, and for
/// each thread.
pub(crate) fn product_bytes(inputs: usize, rows: usize) -> (u64, u64) {
    let (inputs, rows) = (inputs as u64, rows as u64);
    let (for_rows, thread) = affine::product_bytes(inputs, rows);
    // In pairs, as `matmul` takes activations beside bf16.
    let paired = inputs.saturating_mul(rows).saturating_mul(size_of::<f32>() as u64);
    let for_rows = for_rows.max(paired);
    #[cfg(target_arch = "x86_64")]
    {
        let (panel_row, panel_thread) = panel::product_bytes(inputs);
        let (tiles, tiles_thread) = amx::float::product_bytes(inputs, rows);
        let for_rows = for_rows.max(panel_row.saturating_mul(rows)).max(tiles);
        // A thread keeps what it once needed for any kind of matrix.
        (for_rows, thread + panel_thread + tiles_thread)
    }
    #[cfg(not(target_arch = "x86_64"))]
    (for_rows, thread)
}
