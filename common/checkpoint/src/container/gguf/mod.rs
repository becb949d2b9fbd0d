//! The GGUF container, versions 2 and 3: a model in one file, or in several, which llama.cpp and what is built on it read and
//! write.
//!
//! ```text
//! | "GGUF", version, counts | metadata: keys and values | tensors: names, shapes, types, places | data, tensor by tensor |
//! ```
//!
//! Tensors start at multiples of 32 bytes, or of what the file says. What the model is stands under keys of its architecture, of
//! which there is one here for each that runs (`arch/`): it gives the configuration that the Hub has of the same model, and the
//! Hub's names of tensors. Vocabulary and chat template are under keys, too, and become the files of the Hub (`tokenizer/`).
//!
//! Norms are stored with the 1 that some families add to them. Some architectures have the rows of queries and keys in pairs
//! ([`Lies::InPairs`](super::Lies::InPairs)). Experts of a layer lie one after the other in one tensor. Heads of delta rules have
//! keys in turn, and what they forget with a minus: the specification says it (`arch/qwen_hybrid.rs`), and nothing is moved.

mod arch;
mod cursor;
mod error;
mod files;
mod format;
mod header;
#[cfg(test)]
mod hybrids;
mod kind;
mod limits;
#[cfg(test)]
mod made;
#[cfg(test)]
mod malformed;
mod metadata;
mod model;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod refused_by_arch;
#[cfg(test)]
mod rows;
mod tensors;
#[cfg(test)]
mod tests;
mod tokenizer;
pub(crate) mod value;

pub use error::GgufError;
pub(crate) use files::models_in;
pub use format::Gguf;
pub use header::Head;
pub use kind::Kind;
pub use limits::{MAGIC, MAX_HEADER_BYTES};
pub use tensors::TensorInfo;
pub use tokenizer::{DIGIT, ENDS, GPT2, SPLITS, Split, TokenizerError};
pub use value::ValueError;
