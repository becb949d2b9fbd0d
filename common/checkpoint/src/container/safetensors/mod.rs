//! The safetensors container: reading headers, writing them, the index over several files, and which of them count.

mod error;
pub mod header;
pub mod index;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod tests;
pub(crate) mod weights;
pub mod writer;

pub use error::WeightsError;
