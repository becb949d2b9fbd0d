//! JSON and nothing else: which tokens may come next so that an answer keeps to a schema.
//!
//! The grammars are llguidance's; here they meet our tokenizers and our scores, and what strangers may ask for: how
//! much a schema may be (`bounds`, `keywords`, `pattern`) is looked at first, then it is compiled (`compile`), and each
//! step of an answer has a bound of its own.

pub mod bounds;
mod compile;
mod keywords;
mod pattern;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::TokTrie;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

pub use bounds::Refusal;
pub use compile::STACK_BYTES;
use compile::{Compiler, first_line};

/// Most bytes that the lexer of a grammar may grow to. Clones share one: the answers to one request have so many
/// together.
const MAX_LEXER_BYTES: usize = 8 << 20;

/// Grammars over the tokens of one model. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Grammars {
    compiler: Arc<Compiler>,
}

/// What an answer must keep to, and how far it is.
#[derive(Clone)]
pub struct Grammar {
    parser: TokenParser,
    /// Room for what all clones of it share.
    _room: Option<Arc<OwnedSemaphorePermit>>,
}

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
    /// go on with white space for ever. Compiled in turn with others; whoever no longer waits for it takes no
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

impl Grammar {
    fn new(parser: TokenParser, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { parser, _room: room.map(Arc::new) }
    }

    /// Makes the tokens that may not come next impossible: `scores` has one for each id.
    ///
    /// # Errors
    /// [`Error::Broken`], also if that takes more than a step may.
    pub fn mask(&mut self, scores: &mut [f32]) -> Result<(), Error> {
        let (allowed, lexer_bytes) = match self.parser.stop_reason() {
            StopReason::NotStopped => self.guarded(|parser| {
                let mask = parser.compute_mask();
                mask.map(|mask| (mask, parser.parser.lexer_stats().num_bytes))
            })?,
            reason if reason.is_ok() => (self.parser.token_env.tok_trie().eos_token_set(), 0),
            reason => return Err(broken(reason, &"it was broken before")),
        };
        for (id, score) in scores.iter_mut().enumerate() {
            if id >= allowed.len() || !allowed.get(id) {
                *score = f32::NEG_INFINITY;
            }
        }
        match lexer_bytes > MAX_LEXER_BYTES {
            true => Err(broken(StopReason::LexerTooComplex, &"")),
            false => Ok(()),
        }
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// [`Error::Broken`], also if it was not allowed.
    pub fn take(&mut self, id: u32) -> Result<(), Error> {
        self.guarded(|parser| {
            parser.consume_token(id)?;
            parser.check_stop()
        })?;
        Ok(())
    }

    /// Whether nothing can follow any more.
    pub fn is_over(&self) -> bool {
        let reason = self.parser.stop_reason();
        reason != StopReason::NotStopped && reason.is_ok()
    }

    /// What the library does, which may panic.
    fn guarded<T, E: fmt::Display>(
        &mut self,
        act: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, Error> {
        let parser = &mut self.parser;
        let done = catch_unwind(AssertUnwindSafe(|| Ok(act(parser))));
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(broken(self.parser.stop_reason(), &error)),
            Err(error) => Err(broken(StopReason::InternalError, &error)),
        }
    }
}

/// Why an answer cannot go on, without the library's insides.
fn broken(reason: StopReason, error: &impl fmt::Display) -> Error {
    Error::Broken(match reason {
        StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
            "it takes too much to know what may come next".to_owned()
        }
        StopReason::InternalError => "the library failed".to_owned(),
        _ => first_line(error),
    })
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
