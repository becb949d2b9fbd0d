//! Weights in blocks as GGML has them, the other way round: from numbers to blocks.
//!
//! The same bytes as the quantizers of the `gguf` package for Python, which are those of llama.cpp's reference.

mod block;
#[cfg(test)]
mod encode_tests;
pub mod q4_0;
pub mod q8_0;

pub use block::BLOCK;
