//! Blocks of ggml, the library behind llama.cpp: `32` or `256` neighbours of a row share scales, and all numbers of a block
//! lie behind each other. A matrix `[rows, columns]` is one tensor of bytes, `[rows, columns / block · bytes of a block]`.
//!
//! `decode/` decodes all kinds; [`q8_0`] and [`q4_0`] encode, to the same bytes as the quantizers of the `gguf` package for Python,
//! which are those of llama.cpp's reference.

mod bits;
mod codec;
mod decode;
mod encode;
#[cfg(test)]
mod encode_tests;
mod kind;
pub mod q4_0;
pub mod q8_0;
mod unpack;

pub(super) use codec::GgmlCodec;
pub use encode::BLOCK;
pub use kind::GgmlType;
