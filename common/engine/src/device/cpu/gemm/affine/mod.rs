//! GEMM and GEMV with grouped-affine matrices: unsigned codes with a scale and a bias per group of
//! inputs.
//!
//! A weight is `scale · code + bias` (with a zero point `z`, the bias is `-scale · z`). There are two kinds of
//! arithmetic here (with AMX, the up and down projections of prompt rows are rounded to bf16 instead, by `amx::float`):
//!
//! - [`Numerics::Exact`](crate::options::Numerics::Exact): activations stay f32; a weight is dequantized with one
//!   multiply-add and the product is that of [`float`](super::float), in its order of summation.
//! - [`Numerics::Fast`](crate::options::Numerics::Fast): each group of an activation row is quantized to 16 bits
//!   (`activations`; to 8 in MLPs where numerics are [`Numerics::Int8`](crate::options::Numerics::Int8)) and multiplied
//!   with the codes of weights in integer dot products, which no order of summation changes. An output is one chain
//!   over the groups in order, from an accumulator of zero:
//!   `y = mul_add(scale · s, dot, y); y = mul_add(bias, s · sum, y)`, then `+ layer bias`, where `s` is the scale of
//!   the activations of the group, `sum` the sum of their codes and `dot` the sum of the products, rounded to f32 once.
//!   Kernels that multiply bytes take the two bytes of an activation one after the other, and the lower one alone of
//!   those that have 8 bits. All tiers with fused multiply-add give the same bits for any number of rows, tiles and
//!   threads.

mod activations;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
mod call;
pub(crate) mod exact;
pub(crate) mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni;
