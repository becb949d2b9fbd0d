//! Numbers of a byte (E4M3) behind scales: `weight = number · scale`, one scale for each block of rows and columns, for each
//! row, or for all. DeepSeek publishes them in blocks of 128 × 128, vLLM's and Mistral's files have one for each row or
//! matrix, and MLX has blocks of 1 × 32 (`mxfp8`).

mod codec;
mod format;

pub(super) use codec::Fp8Codec;
pub use format::Fp8;
