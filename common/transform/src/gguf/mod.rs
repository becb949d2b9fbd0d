//! GGUF files, as llama.cpp reads them, from models that this project runs.
//!
//! Start at [`convert`]: what a checkpoint's tensors are called and are in GGUF (`arch.rs`, `names.rs`), what else is said
//! of the model (`keys.rs`, `rope.rs`) and of its text (`tokenizer/`), and how that is written (`writer.rs`).

mod arch;
mod form;
mod keys;
mod matrix;
mod names;
mod plan;
mod reader;
mod rope;
#[cfg(test)]
mod tests;
mod texts;
mod tokenizer;
mod writer;

pub use form::{GgufType, GgufTypeParseError};
pub use plan::{GgufOptions, convert};

/// What sentences call the format.
const FORMAT: &str = "GGUF";
