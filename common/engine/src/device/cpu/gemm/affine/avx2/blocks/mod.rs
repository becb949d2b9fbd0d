//! Matrices of GGUF's blocks: how each type's codes, scales and biases are unpacked into registers as it lies in the
//! file.
//!
//! The codes, scales and biases are those that the checkpoint's codec unpacks to, to the bit. What a type is to a
//! kernel is in `block.rs`; the types are in `small.rs` and `large.rs`, by what `bits.rs` has for several of them.

mod bits;
mod block;
mod large;
mod matrix;
mod small;

pub(super) use large::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use matrix::Blocks;
pub(super) use small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
