//! GEMM and GEMV with weights in bf16, or packed ones rounded to that: in `prompt` the GEMM of rows of prefill (of few
//! with weights in place: `pair`), in `few` the GEMV, and the GEMM of few rows, of decode. An activation is
//! `high = bf16(x)`, or the sum of that and of `low = bf16(x - high)`, each rounded to nearest, ties to even: one plane
//! or two, as `Precision` says; two for rows of decode.
//!
//! Every element of a prompt's product is one chain over the inputs, 32 at a time: `sum += w · high` of
//! these 32, then `sum += w · low` if there is one, each as `tdpbf16ps` adds 16 pairs in order, from
//! an accumulator of zero; then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or
//! threads.

mod activations;
mod block;
pub(crate) mod few;
mod in_place;
mod pack;
mod pair;
pub(crate) mod prompt;
mod shape;
mod task;
mod weights;
