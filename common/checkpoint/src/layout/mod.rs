//! How files of safetensors name and lay out the tensors of packed matrices, one file for each way to: when a checkpoint is
//! opened they become those that everybody else knows ([`Part`](crate::Part)), and nothing after it asks how a file had them.

mod canonical;
mod compressed_tensors;
mod format;
mod fp8;
mod list;
mod mlx;
mod module;
mod mxfp4;
mod packing;
mod word;

pub use canonical::{Canonical, canonical};
pub use module::ReadBytes;
pub use packing::Packing;
