//! What is wrong with a tokenizer.

use super::limits::{MAX_TOKEN_BYTES, MAX_TOKENS, MAX_WORK};
use crate::container::gguf::value::{ValueError, short};

/// Why the tokenizer of a GGUF file is not read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum TokenizerError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error(
        "\"tokenizer.ggml.model\" is {:?}; \"gpt2\", \"llama\" and \"gemma4\" are read",
        short(model)
    )]
    Model { model: String },
    #[error("\"tokenizer.ggml.pre\" is {:?}, which is no known way to cut text", short(pre))]
    Pre { pre: String },
    #[error("{key:?} in the metadata has {found} entries; there are {tokens} tokens")]
    Lengths { key: &'static str, found: usize, tokens: usize },
    #[error("{key:?} in the metadata has {found} entries, more than {limit}")]
    TooMany { key: &'static str, found: usize, limit: usize },
    #[error("{key:?} in the metadata has {bytes} bytes of text, more than {limit}")]
    TooLong { key: &'static str, bytes: usize, limit: usize },
    #[error("token {id} has {bytes} bytes, more than {MAX_TOKEN_BYTES}")]
    LongToken { id: usize, bytes: usize },
    #[error("the squares of the tokens' lengths add up to {found}, more than {MAX_WORK}")]
    LongPieces { found: u64 },
    #[error("there are no tokens, or more than {MAX_TOKENS}: {found}")]
    Count { found: usize },
    #[error("tokens {first} and {second} are both {:?}", short(text))]
    Same { first: u32, second: u32, text: String },
    #[error("merge {index} is {:?}, and not two pieces with a space between", short(line))]
    NoPair { index: usize, line: String },
    #[error("merge {index} is {:?}, and {:?} is no token", short(line), short(piece))]
    UnknownPiece { index: usize, line: String, piece: String },
    #[error("score {id} is no number")]
    Score { id: usize },
    #[error("{key:?} in the metadata is {id}, and there are {tokens} tokens")]
    Outside { key: &'static str, id: u64, tokens: usize },
    #[error("{flag:?} in the metadata is true, and {key:?} is not there")]
    NoToken { flag: &'static str, key: &'static str },
}
