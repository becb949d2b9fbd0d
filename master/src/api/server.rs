//! What a server has, from the start and once its model is there.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use cake_engine::SamplingOptions;
use tokio::sync::watch::Receiver;

use super::about::About;
use super::bodies::Bodies;
use super::error::ApiError;
use super::responses::Store;
use super::turns::Turns;
use crate::grammar::{self, Grammars};
use crate::membership::Membership;
use crate::monitor::{Monitor, Phase};
use crate::scheduler::Scheduler;
use crate::text::Text;

/// A server, which answers from the start: its model comes later.
pub struct Server {
    /// What is shown and counted.
    pub monitor: Arc<Monitor>,
    /// Keys of which a request must bring one; none are asked for if empty.
    pub keys: Vec<String>,
    /// Whether requests with different keys share what their prompts begin with.
    pub share_prefixes: bool,
    /// Origins whose pages may ask beside its own; `*` stands for all.
    pub origins: Vec<String>,
    /// The model once it is there.
    pub served: OnceLock<Arc<Served>>,
    /// When it ends.
    pub stopping: Receiver<Stop>,
    /// Room for what requests bring.
    pub bodies: Bodies,
    /// Responses that were given, to go on from.
    pub responses: Store,
    /// Who joined, once the cluster is looked for.
    pub membership: OnceLock<Membership>,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Not yet.
    No,
    /// When answers that have begun are out: it takes no more connections, and streams without an end of their own end.
    Soon,
    /// At once: answers that are not out yet end with an error.
    Now,
}

/// A model that is served.
pub struct Served {
    /// Its name for clients.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// What it is, for whoever asks.
    pub about: About,
    /// Its words.
    pub text: Text,
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

    /// The text of a token by itself.
    pub(super) fn token_text(&self, id: u32) -> String {
        self.text.decode(&[id]).unwrap_or_default()
    }
}

/// The model, for requests that need it.
pub(super) struct Ready(pub(super) Arc<Served>);

impl FromRequestParts<Arc<Server>> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        let (phase, reason) = server.monitor.phase();
        match server.served.get() {
            // While a lost stage is being replaced, requests wait.
            Some(served) if phase != Phase::Broken => Ok(Self(served.clone())),
            _ => Err(ApiError::NotReady { phase, reason }),
        }
    }
}
