//! Weights in bf16: in `prompt` beside rows of prompts (few of them: `pair`), in `few` beside generated ones. An activation is
//! `high = bf16(x)`, or the sum of that and of `low = bf16(x - high)`, each rounded to nearest, ties to
//! even: one plane or two, as `Precision` says; two for generated rows.
//!
//! Every element of a prompt's product is one chain over the inputs, 32 at a time: `sum += w · high` of
//! these 32, then `sum += w · low` if there is one, each as `tdpbf16ps` adds 16 pairs in order, from
//! a sum of zero; then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or
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
