//! Numbers of 4 bits (E2M1) behind scales of a byte: `weight = number · scale`. MXFP4, as the Open Compute Project defines it
//! and gpt-oss is published, has a power of two (E8M0) for each 32 weights of a row; NVFP4, as NVIDIA defines it, an E4M3 for
//! each 16, which one number of the matrix divides or multiplies, if there is one.

mod codec;
mod encode;
mod kind;

pub(super) use codec::Fp4Codec;
pub use kind::Fp4;
