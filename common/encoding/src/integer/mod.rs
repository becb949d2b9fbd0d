//! Whole numbers with a scale per group and a zero point: what GPTQ, AWQ and compressed-tensors write.

mod codec;
mod decode;
mod format;
#[cfg(test)]
mod tests;
mod unpack;

pub(super) use codec::IntegerCodec;
pub use format::{Integer, Order, Zero};
