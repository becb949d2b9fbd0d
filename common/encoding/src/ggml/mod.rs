//! Blocks of ggml, the library behind llama.cpp: `32` or `256` neighbours of a row share scales, and all numbers of a block
//! lie behind each other. A matrix `[rows, columns]` is one tensor of bytes, `[rows, columns / block · bytes of a block]`.
//!
//! `decode/` decodes all kinds. `q8_0.rs`, `q4_0.rs`, `q4_1.rs`, `q5_0.rs` and `q5_1.rs` encode to the same bytes as the
//! quantizers of the `gguf` package for Python, which are those of llama.cpp's reference; `large/` encodes larger blocks in a
//! way of its own.

mod bits;
mod codec;
mod decode;
mod encode;
#[cfg(test)]
mod encode_tests;
mod kind;
mod large;
mod q4_0;
mod q4_1;
mod q5_0;
mod q5_1;
mod q8_0;
mod unpack;

pub(super) use codec::GgmlCodec;
pub use kind::GgmlType;
