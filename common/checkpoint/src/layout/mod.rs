//! How files of safetensors name and lay out the tensors of packed matrices, one file for each way to: when a checkpoint is
//! opened they become those that everybody else knows ([`Part`](crate::Part)), and nothing after it asks how a file had them.

mod awq;
mod bitsandbytes;
mod canonical;
mod compressed_tensors;
mod format;
mod fp8;
mod gptq;
mod integers;
mod list;
mod mlx;
mod modelopt;
mod module;
mod mxfp4;
mod pack_quantized;
mod packing;
#[cfg(test)]
mod tests;
mod word;

pub use awq::Awq;
pub use canonical::{Canonical, canonical};
pub use gptq::Gptq;
pub use module::ReadBytes;
pub use pack_quantized::PackQuantized;
pub use packing::Packing;
