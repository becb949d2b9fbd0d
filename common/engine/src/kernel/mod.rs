//! CPU kernels: f32 arithmetic on weights that stay as they are stored.
//!
//! Start at [`Tier`], which picks the instructions at run time, and [`matmul()`], where the time
//! goes. Candle code reaches the kernels through custom operations in the modules above this one.
//!
//! Invariants:
//! - Every output element has one order of summation, which its kernel states; in `matmul`, 16
//!   lanes
//!   over the summed axis (element `i` belongs to lane `i % 16`, or in bf16 to lane `i / 2 % 16` but for
//!   the last `inputs % 32`; a short last vector is padded with zeros), then the tree of `Simd::sum`.
//!   Neither the number of rows, nor the number of threads, nor the tile an element falls into changes
//!   a bit of it.
//! - Where nothing is rounded to bf16, the tiers with fused multiply-add agree to the bit; the portable tier of
//!   processors without it rounds twice per step and agrees within rounding.
//! - No matrix is ever widened as a whole.

mod affine;
mod agreement;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod buffer;
mod choice;
mod element;
mod elementwise;
mod inputs;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod panel;
mod simd;
#[cfg(test)]
mod small;
mod target;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use affine::{AffineMatrix, Bits, affine_matmul};
pub use agreement::{MatrixKinds, arithmetic, same_bits};
pub(crate) use attention::{Attend, AttendRow, KvView, attend, attend_floats};
pub(crate) use buffer::{Room, Unset};
pub(crate) use choice::chosen;
pub use choice::cpu_tier;
pub(crate) use element::{Element, F16, F32, FloatType};
pub(crate) use elementwise::{add, gated, largest, rms_norm, rotate, softmax, sum_exp};
pub(crate) use inputs::Inputs;
pub(crate) use matmul::{Matrix, matmul};
use simd::Kernel;

use crate::options::Numerics;
use crate::pool::Tasks;

/// The instructions that the kernels use, chosen once per process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tier {
    /// Plain Rust; also the oracle of the others.
    Portable(simd::Portable),
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    /// AVX-512 (F, BW, DQ, VL).
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    /// AVX-512 with BF16 and VNNI, and tile registers (AMX).
    #[cfg(target_arch = "x86_64")]
    Amx(amx::Amx),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Tier {
    /// Runs `kernel` compiled for this tier.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Tier::Portable(simd) => kernel.run(simd),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Amx(amx) => amx.avx512().run(kernel),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon(simd) => simd.run(kernel),
        }
    }

    /// Proof of AVX-512, if this tier has it.
    #[cfg(target_arch = "x86_64")]
    fn avx512(self) -> Option<x86::Avx512> {
        match self {
            Tier::Avx512(simd) => Some(simd),
            Tier::Amx(amx) => Some(amx.avx512()),
            _ => None,
        }
    }
}

/// How many bits of an activation of a prompt a product takes, where the processor multiplies pairs of
/// bf16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precision {
    /// It is rounded to bf16: 8 bits.
    Bf16,
    /// The same, and so are packed weights.
    Bf16Both,
    /// It is the sum of two bf16: 16 bits, in twice the time.
    Bf16x2,
}

#[cfg(target_arch = "x86_64")]
impl Precision {
    /// How many bf16 an activation is.
    fn planes(self) -> usize {
        match self {
            Precision::Bf16 | Precision::Bf16Both => 1,
            Precision::Bf16x2 => 2,
        }
    }
}

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
            let weight = amx::Weights::Bf16(weight);
            return amx::float_matmul(proof, precision, weight, bias, x, y);
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
        let weight = amx::Weights::Affine(weight);
        return amx::float_matmul(proof, Precision::Bf16, weight, bias, x, y);
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
        return amx::few_float_matmul(proof, weight, bias, x, y);
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
        let (tiles, tiles_thread) = amx::product_bytes(inputs, rows);
        let for_rows = for_rows.max(panel_row.saturating_mul(rows)).max(tiles);
        // A thread keeps what it once needed for any kind of matrix.
        (for_rows, thread + panel_thread + tiles_thread)
    }
    #[cfg(not(target_arch = "x86_64"))]
    (for_rows, thread)
}

/// Least bytes by which requests to memory go ahead of products: what arrives while memory answers.
const AHEAD: usize = 64 << 10;
/// Bytes that memory is asked for at a time.
pub(crate) const CACHE_LINE: usize = 64;

/// Asks memory for the cache line at `address`, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(address);
    #[cfg(target_arch = "aarch64")]
    neon::prefetch(address);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address; // Not every architecture has a stable way to ask.
}

/// Least number of element operations worth waking another thread for.
///
/// A wake-up costs some ten microseconds, in which one core does about this much. In tests
/// nothing is too little, so that tiny models run on several threads too.
const PARALLEL_WORK: usize = if cfg!(test) { 1 } else { 1 << 16 };
