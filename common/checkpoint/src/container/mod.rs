//! File formats that models come in: each gives named, sized, typed tensors and the model's specification
//! ([`Contents`]), and none knows what a tensor is for ([`Container`]).

mod contents;
mod format;
mod list;
pub mod safetensors;
#[cfg(test)]
mod tests;

pub use contents::{CheckpointFile, Contents, StoredTensor};
pub use format::Container;
pub use list::{CONTAINERS, recognise};
