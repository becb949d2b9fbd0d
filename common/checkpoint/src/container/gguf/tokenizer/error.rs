//! What is wrong with a tokenizer.

use super::limits::{MAX_TOKEN_BYTES, MAX_TOKENS};
use crate::container::gguf::value::ValueError;

/// Why the tokenizer of a GGUF file is not read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum TokenizerError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error("\"tokenizer.ggml.model\" is {model:?}; \"gpt2\", \"llama\" and \"gemma4\" are read")]
    Model { model: String },
    #[error("\"tokenizer.ggml.pre\" is {pre:?}, which is no known way to cut text")]
    Pre { pre: String },
    #[error("{key:?} in the metadata has {found} entries; there are {tokens} tokens")]
    Lengths { key: &'static str, found: usize, tokens: usize },
    #[error("{key:?} in the metadata has {found} entries, more than {limit}")]
    TooMany { key: &'static str, found: usize, limit: usize },
    #[error("{key:?} in the metadata has {bytes} bytes of text, more than {limit}")]
    TooLong { key: &'static str, bytes: usize, limit: usize },
    #[error("token {id} has {bytes} bytes, more than {MAX_TOKEN_BYTES}")]
    LongToken { id: usize, bytes: usize },
    #[error("there are no tokens, or more than {MAX_TOKENS}: {found}")]
    Count { found: usize },
    #[error("tokens {first} and {second} are both {text:?}")]
    Same { first: u32, second: u32, text: String },
    #[error("merge {index} is {line:?}, and not two pieces with a space between")]
    NoPair { index: usize, line: String },
    #[error("merge {index} is {line:?}, and {piece:?} is no token")]
    UnknownPiece { index: usize, line: String, piece: String },
    #[error("score {id} is no number")]
    Score { id: usize },
    #[error("{key:?} in the metadata is {id}, and there are {tokens} tokens")]
    Outside { key: &'static str, id: u64, tokens: usize },
    #[error("{flag:?} in the metadata is true, and {key:?} is not there")]
    NoToken { flag: &'static str, key: &'static str },
}
