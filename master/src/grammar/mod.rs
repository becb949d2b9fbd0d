//! JSON and nothing else: which tokens may come next so that an answer keeps to a schema.
//!
//! The grammars are llguidance's; here they meet our tokenizers and our scores, and what strangers may ask for: how
//! much a schema may be (`bounds`, `keywords`, `pattern`) is looked at first, then it is compiled (`compile`), and each
//! step of an answer has a bound of its own.

pub mod bounds;
mod closed;
mod compile;
mod enforce;
mod error;
mod keywords;
mod limits;
mod pattern;

use std::fmt;
use std::sync::Arc;

use llguidance::toktrie::TokTrie;
use serde_json::{Value, json};

pub use closed::close;
use compile::Compiler;
pub use compile::STACK_BYTES;
pub use enforce::Grammar;
pub use error::Error;
pub use limits::Refusal;

/// Grammars over the tokens of one model. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Grammars {
    compiler: Arc<Compiler>,
}

impl Grammars {
    /// * `tokens`: the bytes of each token by id; none if it is no text.
    /// * `end_ids`: ids that end an answer.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn new(tokens: &[Option<Vec<u8>>], end_ids: &[u32]) -> Result<Self, Error> {
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(tokens.len());
        for (id, bytes) in tokens.iter().enumerate() {
            words.push(match bytes {
                Some(bytes) if !bytes.is_empty() => bytes.clone(),
                // No text has the marker, so no grammar asks for them.
                _ => [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("<{id}>").as_bytes()].concat(),
            });
        }
        let ends: Vec<u32> =
            end_ids.iter().copied().filter(|id| (*id as usize) < words.len()).collect();
        Ok(Self { compiler: Arc::new(Compiler::new(&words, &ends)?) })
    }

    /// The schema of any JSON object.
    pub fn any_object() -> Value {
        json!({ "type": "object" })
    }

    /// JSON that keeps to a schema, without white space but a space after colons and commas: a model may
    /// go on with white space for ever, and with properties that nobody listed (`closed`). Compiled in turn with others; whoever no longer waits for it takes no
    /// turn.
    ///
    /// # Errors
    /// Of [`Error`] all but [`Error::Tokenizer`] and [`Error::Broken`].
    pub async fn json_schema(&self, schema: Value) -> Result<Grammar, Error> {
        self.compiler.clone().in_turn(schema).await
    }

    /// The same at once and on this thread, whose stack must have [`STACK_BYTES`] for schemas of strangers.
    ///
    /// # Errors
    /// As [`Grammars::json_schema`].
    pub fn compile(&self, schema: Value) -> Result<Grammar, Error> {
        bounds::check(&schema)?;
        Ok(Grammar::new(self.compiler.compile(schema, &|| false)?, None))
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
