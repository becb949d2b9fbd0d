//! The safetensors container: a model in a directory of such files, their headers and index. Blobs have this form, too.

mod error;
mod format;
pub mod header;
pub mod index;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod tests;
mod weights;
pub mod writer;

pub use error::WeightsError;
pub use format::{CONFIG, Safetensors};
pub use index::{EXTENSION, INDEX};
pub use weights::{INDEX_EXTENSION, SINGLE};
