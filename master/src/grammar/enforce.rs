//! One answer held to a schema: which tokens may come next, within a bound for each step.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use tokio::sync::OwnedSemaphorePermit;

use super::error::{Error, first_line};

/// Most bytes that the lexer of a grammar may grow to. Clones share one: the answers to one request have so many
/// together.
const MAX_LEXER_BYTES: usize = 8 << 20;

/// What an answer must keep to, and how far it is.
#[derive(Clone)]
pub struct Grammar {
    parser: TokenParser,
    /// Room for what all clones of it share.
    _room: Option<Arc<OwnedSemaphorePermit>>,
}

impl Grammar {
    pub(super) fn new(parser: TokenParser, room: Option<OwnedSemaphorePermit>) -> Self {
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

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("over", &self.is_over()).finish_non_exhaustive()
    }
}
