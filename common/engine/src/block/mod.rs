//! The mathematics of a layer: its operations, each in a file of its own, and the residual branches that hold them.

mod attention;
mod experts;
mod layer;
mod mlp;
mod norm;
mod step;

pub(crate) use layer::DecoderLayer;
pub(crate) use norm::RmsNorm;
pub(crate) use step::Step;
