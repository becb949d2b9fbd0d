//! A model as requests use it.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use cake_engine::SamplingOptions;
use tokio::sync::oneshot;

use super::error::ApiError;
use super::turns::Turns;
use crate::grammar::{self, Grammars};
use crate::scheduler::Scheduler;
use crate::shelf::About;
use crate::text::Text;

/// A model that is served.
pub struct Served {
    /// Its name for clients.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// What it is, for whoever asks.
    pub about: About,
    /// Its words.
    pub text: Arc<Text>,
    /// Whose prompts are read.
    pub turns: Turns,
    /// Its sequences.
    pub scheduler: Scheduler,
    /// How it chooses tokens unless a request says otherwise.
    pub defaults: SamplingOptions,
    /// Most new tokens of an answer in a chat unless a request says otherwise.
    pub max_tokens: usize,
    /// Ids that end an answer.
    pub stop_ids: Arc<HashSet<u32>>,
    /// Grammars over its tokens, made when the first one is needed.
    pub grammars: OnceLock<Result<Grammars, grammar::Error>>,
    /// Nothing is ever sent: whoever waits for its end learns that no request uses the model any more. What is computed
    /// already and not yet sent needs its words alone.
    pub used: oneshot::Sender<()>,
}

impl Served {
    /// Grammars over its tokens. Takes a while the first time.
    pub(super) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let ends: Vec<u32> = self.stop_ids.iter().copied().collect();
        let vocab_size = self.scheduler.vocab_size();
        let make = || Grammars::new(&self.text.token_bytes(vocab_size), &ends);
        let made = self.grammars.get_or_init(make);
        made.as_ref().map_err(|error| ApiError::Grammar(error.clone()))
    }
}
