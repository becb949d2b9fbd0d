//! The GGUF container, versions 2 and 3: a model in one file, or in several, which llama.cpp and what is built on it read and
//! write.
//!
//! ```text
//! | "GGUF", version, counts | metadata: keys and values | tensors: names, shapes, types, places | data, tensor by tensor |
//! ```

mod tokenizer;
pub(crate) mod value;

pub use tokenizer::{DIGIT, ENDS, GPT2, SPLITS, Split, TokenizerError};
