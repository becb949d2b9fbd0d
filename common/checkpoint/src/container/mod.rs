//! File formats that models come in: each gives named, sized, typed tensors, the model's specification and its text
//! side ([`Contents`]), and none knows what a tensor is for ([`Container`]).

pub mod apr;
mod contents;
mod format;
pub mod gguf;
mod list;
pub mod safetensors;
#[cfg(test)]
mod tests;
mod texts;

pub use contents::{
    Across, CheckpointFile, Checksum, Contents, Lies, Places, Stored, StoredTensor, Strides,
};
pub use format::Container;
pub use list::{CONTAINERS, recognise};
pub use texts::TextFiles;
