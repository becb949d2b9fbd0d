//! The mathematics of a layer: its operations, each in a file of its own, and the residual branches that hold them;
//! once, over whatever device computes.

mod attention;
mod delta;
mod experts;
mod latent;
mod layer;
mod low_rank;
mod mamba;
mod mlp;
mod short_convolution;
mod streams;
mod with_given;

pub(crate) use layer::DecoderLayer;
