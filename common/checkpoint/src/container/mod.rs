//! File formats that models come in: each gives named, sized, typed tensors, the model's specification and its text
//! side ([`Contents`]), and none knows what a tensor is for ([`Container`]).

pub mod apr;
mod contents;
mod format;
pub mod gguf;
mod list;
pub mod safetensors;
mod tensor;
#[cfg(test)]
mod tests;
mod texts;

pub use contents::{CheckpointFile, Checksum, Contents, Stored};
pub use format::Container;
pub use list::{CONTAINERS, recognise};
pub use tensor::{Across, Lies, Places, StoredTensor, Strides};
pub use texts::TextFiles;
