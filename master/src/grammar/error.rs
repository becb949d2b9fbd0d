//! Why an answer cannot be held to a schema.

use std::fmt::Display;

use super::limits::Refusal;

/// Most bytes of an error of the library that a refusal repeats.
const MAX_ERROR_BYTES: usize = 160;

/// Why an answer cannot be held to a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer is none that grammars know what to do with.
    #[error("grammars cannot be used with this tokenizer: {0}")]
    Tokenizer(String),
    /// The schema asks for more than is taken, or is none.
    #[error("the schema cannot be enforced: {0}")]
    Schema(#[from] Refusal),
    /// It asks for what is not known how to do, in the library's words.
    #[error("the schema cannot be enforced: {0}")]
    Unsupported(String),
    /// It is within bounds, and yet compiling it takes too long or too much.
    #[error("the schema cannot be enforced: compiling it takes too much")]
    TooMuch,
    /// Others are compiled first, or use the memory.
    #[error("other schemas are being compiled: try again later")]
    Busy,
    /// It was enforced, until this.
    #[error("the schema could not be enforced any longer: {0}")]
    Broken(String),
}

/// What the library says in one line: the first one, and what it announces, which is the last.
pub(super) fn first_line(error: &impl Display) -> String {
    let said = error.to_string();
    let mut lines = said.lines().map(str::trim);
    let mut line = lines.next().unwrap_or_default().to_owned();
    if let Some(last) = lines.next_back().filter(|_| line.ends_with(':')) {
        line = format!("{line} {}", last.trim_start_matches("error: "));
    }
    let end = line.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_ERROR_BYTES);
    line.truncate(end.unwrap_or(line.len()));
    line
}
