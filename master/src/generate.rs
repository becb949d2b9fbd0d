//! From token ids to more token ids: what is asked, what an answer is and what it took, and the master's own part of it.
//! How steps follow from each other is the scheduler's to say, for one sequence (`scheduler/single.rs`) and for many.
use std::collections::HashSet;
use std::time::Duration;

use cake_checkpoint::ModelSpec;
use cake_engine::SamplingOptions;
use cake_engine::{Embedding, EngineOptions, Head};
use serde::Serialize;

use crate::chunk::Chunk;
use crate::model::EndWeights;
use crate::pipeline;
pub use crate::scheduler::Finish;
use crate::scheduler::{self, Refusal};

/// What the master computes itself: embedding before the first stage, norm and head after the last.
pub struct Ends {
    embedding: Embedding,
    head: Head,
    vocab_size: usize,
}

/// What to generate and when to stop.
#[derive(Clone, Debug)]
pub struct Options {
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Most new tokens.
    pub max_tokens: usize,
    /// Ids that end the answer; empty to go on past them.
    pub stop_ids: HashSet<u32>,
    /// How the prompt is cut into steps.
    pub chunk: Chunk,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Keep the logits of every prompt position.
    pub keep_prompt_logits: bool,
}

/// An answer and what it took.
#[derive(Clone, Debug)]
pub struct Answer {
    /// New ids, without the one that ended it.
    pub output_ids: Vec<u32>,
    /// Log-probability of each.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
    /// `[prompt positions, vocab_size]` if asked for; only of the positions computed now.
    pub prompt_logits: Option<Vec<f32>>,
    /// What it took.
    pub timing: Timing,
}

/// Times of one answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timing {
    /// Prompt tokens computed now.
    pub prompt_tokens: usize,
    /// Of these, rows of each step but the last one.
    pub prompt_chunk: usize,
    /// Prompt tokens whose KV entries were there from an earlier turn.
    pub reused_tokens: usize,
    /// From the start of the prompt to its last row's answer.
    pub prefill_seconds: f64,
    /// From the start of the prompt to the first token.
    pub first_token_seconds: f64,
    /// Tokens made after the first one.
    pub decode_tokens: usize,
    /// Time of these.
    pub decode_seconds: f64,
    /// Prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Tokens per second after the first one.
    pub decode_tokens_per_second: f64,
    /// Seconds that each stage computed, prompt and answer together.
    pub stage_seconds: Vec<f64>,
    /// Messages between machines for each token after the first one: one to each worker, one back,
    /// and one more where the master relays.
    pub hops: usize,
    /// Each token after the first one.
    pub decode_steps: Vec<StepTiming>,
}

/// Where the time of one token went. What neither the stages nor the ends took is the network's and
/// ours: queues, threads that wake up, messages made and read.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StepTiming {
    /// From choosing the token before it to its logits.
    pub seconds: f64,
    /// Of that, all stages' arithmetic.
    pub stage_seconds: f64,
    /// Of that, the master's embedding, norm, head and sampling.
    pub ends_seconds: f64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step failed.
    #[error(transparent)]
    Pipeline(#[from] pipeline::Error),
    /// Embedding or head failed.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
    /// The prompt cannot be continued.
    #[error("{refusal}{}", way_out(.refusal))]
    Refused {
        /// Why not.
        refusal: Refusal,
    },
    /// A token could not be chosen.
    #[error(transparent)]
    Answer(#[from] scheduler::Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { refusal }
    }
}

/// What can be done about a refusal.
fn way_out(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::PromptTooLong { .. } => ": give a larger --context",
        _ => "",
    }
}

impl Ends {
    /// Embedding, final norm and head with these weights.
    ///
    /// # Errors
    /// If they have the wrong shape.
    pub fn new(
        config: &ModelSpec,
        weights: EndWeights,
        options: &EngineOptions,
    ) -> Result<Self, cake_engine::Error> {
        let EndWeights { embedding, head, norm, others } = weights;
        let others = |name: &str| others.get(name).cloned();
        let head = head.unwrap_or_else(|| embedding.clone());
        Ok(Self {
            embedding: Embedding::new(config, embedding, &others, options)?,
            head: Head::new(config, norm, head, &others, options)?,
            vocab_size: config.vocab_size,
        })
    }

    /// Ids there are.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// What the first layer takes of ids of the vocabulary, `[ids, row_width]` ([`ModelSpec::row_width`]).
    ///
    /// # Errors
    /// If an id is not in it.
    pub fn embed(&self, ids: &[u32]) -> Result<Vec<f32>, cake_engine::Error> {
        self.embedding.forward(ids)
    }

    /// Logits `[rows, vocab_size]` of hidden states `[rows, hidden_size]`. Takes milliseconds: not for
    /// a thread that others wait for.
    ///
    /// # Errors
    /// If the arithmetic fails.
    pub fn score(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, cake_engine::Error> {
        self.head.forward(hidden, rows)
    }

    /// The final hidden states `[rows, hidden_size]` of `hidden`, of the same shape: after the norm.
    ///
    /// # Errors
    /// If the arithmetic fails.
    pub fn normed(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, cake_engine::Error> {
        self.head.normed(hidden, rows)
    }
}

impl Timing {
    /// Adds the microseconds that each stage computed on a step.
    pub(crate) fn add(&mut self, stage_us: &[u32]) {
        self.stage_seconds.resize(self.stage_seconds.len().max(stage_us.len()), 0.0);
        for (total, &us) in self.stage_seconds.iter_mut().zip(stage_us) {
            *total += f64::from(us) * 1e-6;
        }
    }

    /// Notes how many tokens came, and the time of all but the first.
    pub fn finish(&mut self, tokens: usize, decode: Duration) {
        self.decode_tokens = tokens.saturating_sub(1);
        self.decode_seconds = decode.as_secs_f64();
        let rate = |tokens: usize, seconds: f64| {
            if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
        };
        self.prefill_tokens_per_second = rate(self.prompt_tokens, self.prefill_seconds);
        self.decode_tokens_per_second = rate(self.decode_tokens, self.decode_seconds);
    }
}
