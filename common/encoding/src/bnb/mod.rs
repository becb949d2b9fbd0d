//! Codes of 4 bits that name one of 16 levels between -1 and 1: `weight = level · scale`, one scale for each block of a row, the
//! largest magnitude that the block had. bitsandbytes defines them (NF4 in arXiv:2305.14314); its "double quantization" stores a
//! scale as a byte, too: `scale = level of scales[byte] · scale of scales + offset of scales`, in f32, each step rounded.
//!
//! Where a block's scale is F32 there is nothing but it; bitsandbytes rounds each product to the type that the matrix had before
//! it was packed, and here it stays f32.

mod codec;
mod format;
#[cfg(test)]
mod tests;

pub(super) use codec::BnbCodec;
pub use format::{Bnb, Levels};
