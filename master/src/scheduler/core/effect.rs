//! What the core decided, for others to carry out.

use std::time::Duration;

use crate::scheduler::request::{Error, Event};
use crate::scheduler::sampler::Token;

/// What is to be done about a decision.
#[derive(Debug)]
pub(in crate::scheduler) enum Effect {
    /// A sequence has left the queue.
    Begun {
        sequence: u64,
        /// Since it was asked for.
        waited: Duration,
        prompt_tokens: usize,
        /// Prompt tokens that need not be computed.
        reused_tokens: usize,
    },
    /// All tokens of a sequence's prompt from the second on, scored, before its first token.
    Scored { sequence: u64, tokens: Vec<Token> },
    /// A sequence has one more token.
    Token {
        sequence: u64,
        token: Token,
        /// Since the token before it, or since it was asked for.
        took: Duration,
        is_first: bool,
    },
    /// A sequence gives its place back. Its last event, unless whoever asked for it gave it up, and the tokens it had.
    Over { sequence: u64, event: Option<Event>, generated: usize },
    /// A step failed for good, and so did so many sequences that were in it.
    StepFailed { error: Error, sequences: usize },
    /// The pipeline is of no use any more and is to be closed; so many sequences wait for another one.
    PipelineLost { error: Error, sequences: usize },
}
