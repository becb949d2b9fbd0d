//! Blocks of ggml, the library behind llama.cpp: `32` or `256` neighbours of a row share scales, and all numbers of a block
//! lie behind each other. A matrix `[rows, columns]` is one tensor of bytes, `[rows, columns / block · bytes of a block]`.

mod blocks;
mod codec;
mod kind;

pub(super) use codec::GgmlCodec;
pub use kind::GgmlType;
