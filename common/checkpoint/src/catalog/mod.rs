//! The catalog of a checkpoint: every tensor, in which file, at which bytes, in which layer.

mod across;
mod biases;
mod checkpoint;
mod choosing;
mod ends;
mod error;
mod expected;
mod former;
mod latents;
mod matrix;
mod open;
mod paired;
mod rows_apart;
mod strided;
mod tensor;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use error::CatalogError;
pub(crate) use former::Former;
pub use matrix::MatrixTensors;
pub use tensor::Tensor;
