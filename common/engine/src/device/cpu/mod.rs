//! CPU kernels: GEMM, GEMV, attention and what happens between them, on f32 activations and on weights that stay as
//! they are stored.
//!
//! Start at `compute`, which makes a device of them, and `gemm::table`, which has every GEMM and GEMV kernel: there the
//! time goes. `isa::tier` picks the instructions at run time.
//!
//! Invariants:
//! - Every output element has one order of summation, which its kernel states. A chain is the additions to one
//!   accumulator in that order. In `gemm::float` there are 16 accumulators, lanes over the summed axis (element `i`
//!   belongs to lane `i % 16`, or in bf16 to lane `i / 2 % 16` but for the last `inputs % 32`; a short last vector is
//!   padded with zeros), then the tree of `Simd::sum`.
//!   Neither the number of rows, nor the number of threads, nor the tile an element falls into changes
//!   a bit of it.
//! - Where nothing is rounded to bf16, the tiers with fused multiply-add agree to the bit; the portable tier of
//!   processors without it rounds twice per step and agrees within rounding.
//! - No kernel dequantizes a matrix as a whole.

mod activation;
pub(crate) mod agreement;
pub(crate) mod attention;
pub(crate) mod buffer;
mod compute;
pub(crate) mod element;
pub(crate) mod elementwise;
pub(crate) mod exponential;
pub(crate) mod gemm;
pub(crate) mod isa;
mod kv;
mod linear;
pub(crate) mod operand;
pub mod placement;
pub(crate) mod pool;
mod recurrent;
#[cfg(test)]
mod small;

pub(crate) use compute::Cpu;
