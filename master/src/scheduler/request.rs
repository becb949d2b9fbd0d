//! What a scheduler is asked for, what happens to a sequence, and why one is refused or ends.

use std::collections::HashSet;
use std::sync::Arc;

use cake_engine::blocks_for;
use serde::Serialize;

use super::cache::{Scope, Usage};
use super::sampler::{Choice, Token};
use crate::chunk::Chunk;
use crate::grammar;
use crate::pipeline;
use crate::sizing::Promise;

/// What the pipeline was planned for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Sequences of that length that there are blocks for.
    pub parallel: usize,
    /// Most sequences at once, however short they are.
    pub most_running: usize,
    /// KV blocks of every stage.
    pub kv_blocks: usize,
    /// Slots of every stage for the state of recurrent layers, and so the most sequences at once; 0 if the model has no
    /// such layer.
    pub state_slots: usize,
    /// How a prompt is cut into steps.
    pub chunk: Chunk,
    /// Most prompt rows in one step, of all prompts.
    pub prompt_rows: usize,
    /// Most sequences that wait beside those that run, and beside as many as `parallel` says.
    pub queue: usize,
}

/// A sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Most new tokens.
    pub max_tokens: usize,
    /// Ids that end it.
    pub stop_ids: Arc<HashSet<u32>>,
    /// What it is computed for.
    pub goal: Goal,
    /// Whose prefixes it shares.
    pub scope: Scope,
}

/// What a sequence is computed for.
#[derive(Clone, Debug)]
pub enum Goal {
    /// An answer, whose tokens are chosen in this way.
    Answer(Box<Choice>),
    /// One vector for the prompt. No token is chosen.
    Embedding,
}

/// What happens to a sequence, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// It has left the queue.
    Begun {
        /// Prompt tokens that need not be computed.
        reused_tokens: usize,
    },
    /// The prompt's tokens from the second on, if they were to be scored: before the first new one.
    Scored(Vec<Token>),
    /// One more token.
    Token(Token),
    /// The mean of the final hidden states of all rows of the prompt, `[hidden_size]`: the last event.
    Embedding(Vec<f32>),
    /// The last event.
    Ended(Finish),
    /// The last event: a step failed, or a lost stage was not replaced in time.
    Failed(Error),
}

/// Why a sequence did not come to its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A stage failed, or is gone.
    #[error(transparent)]
    Pipeline(#[from] pipeline::Error),
    /// A thread of the master's did.
    #[error("choosing a token ended unexpectedly")]
    Panicked,
    /// A sequence alone on its pipeline is not over, and none of its steps is on its way: a bug here.
    #[error(
        "the answer is not over, and no step of it is on its way: this is a fault of Cake itself"
    )]
    NoStep,
    /// A sequence is over without its last event, or with one that nobody asked for: a bug here.
    #[error("the answer is over, and nothing says how it ended: this is a fault of Cake itself")]
    NoEnd,
    /// A grammar did.
    #[error(transparent)]
    Grammar(#[from] grammar::Error),
    /// Embedding or head failed.
    #[error("the master could not compute its own part: {0}")]
    Engine(Arc<cake_engine::Error>),
    /// A stage was lost, and nothing took its place in time.
    #[error("the cluster is not whole again yet: {0}")]
    Unrecovered(String),
    /// The task that owns all sequences has ended, which it never does while somebody may submit.
    #[error("the scheduler, which every answer comes from, ended unexpectedly: {0}")]
    Ended(Arc<str>),
    /// Stage after stage was lost with it.
    #[error("{losses} times a stage was lost before its next token came: perhaps because of it")]
    LostAgain {
        /// How often.
        losses: usize,
    },
}

impl Error {
    /// Whether the same steps may succeed over another pipeline.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, Self::Pipeline(error) if error.is_loss())
    }
}

/// What becomes of sequences when a stage is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// They fail.
    Fail,
    /// They wait for another pipeline, or until whoever would open one gives up.
    Wait,
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Longer than what was planned for.
    #[error(
        "the prompt has {tokens} tokens, {} more than the context of {context}",
        if tokens > context { "which is" } else { "and with one to come that is" }
    )]
    PromptTooLong {
        /// Its tokens.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// It could not run even alone.
    #[error("prompt and answer of {tokens} tokens need {needed} KV blocks, there are {total}")]
    NeverFits {
        /// Tokens of both.
        tokens: usize,
        /// Blocks they need.
        needed: usize,
        /// Blocks there are.
        total: usize,
    },
    /// An id that the model does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_size}")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids there are.
        vocab_size: usize,
    },
    /// As many wait as may.
    #[error("{waiting} answers wait already: try again later")]
    Busy {
        /// How many.
        waiting: usize,
    },
    /// More at once than may ever wait.
    #[error("{answers} answers in one request, at most {most} may run and wait")]
    TooMany {
        /// Asked for.
        answers: usize,
        /// As many as run and wait at most.
        most: usize,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model said so, or a stop string was found.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
}

impl Finish {
    /// Its word in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
        }
    }
}

/// How busy a scheduler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Requests that wait.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// Steps on their way.
    pub steps: usize,
    /// KV blocks of every stage.
    pub kv_blocks: Usage,
    /// Slots of every stage for the state of recurrent layers; none if the model has no such layer.
    pub state_slots: Usage,
}

impl Load {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            running: self.running + other.running,
            steps: self.steps + other.steps,
            kv_blocks: self.kv_blocks.and(other.kv_blocks),
            state_slots: self.state_slots.and(other.state_slots),
        }
    }
}

impl Limits {
    /// What was promised by a plan, with a queue for so many.
    pub fn of(promise: &Promise, chunk: Chunk, queue: usize) -> Self {
        Self {
            context: promise.context,
            parallel: promise.parallel,
            most_running: promise.most_sequences(),
            kv_blocks: promise.kv_blocks(),
            state_slots: promise.state_slots,
            chunk,
            prompt_rows: promise.chunk,
            queue,
        }
    }

    /// Whether a request can be taken where there are so many ids.
    pub(super) fn check(&self, request: &Request, vocab_size: usize) -> Result<(), Refusal> {
        let Limits { context, kv_blocks, .. } = *self;
        let prompt = &request.prompt;
        if prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        let to_come = usize::from(self.longest_after(request) > 0);
        if prompt.len().saturating_add(to_come) > context {
            return Err(Refusal::PromptTooLong { tokens: prompt.len(), context });
        }
        if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Refusal::UnknownId { id, vocab_size });
        }
        let tokens = self.longest(request);
        let needed = blocks_for(tokens);
        match needed > kv_blocks {
            true => Err(Refusal::NeverFits { tokens, needed, total: kv_blocks }),
            false => Ok(()),
        }
    }

    /// Tokens that a sequence may grow to.
    pub(super) fn longest(&self, request: &Request) -> usize {
        request.prompt.len().saturating_add(self.longest_after(request)).min(self.context)
    }

    /// Tokens that may follow a prompt.
    fn longest_after(&self, request: &Request) -> usize {
        match request.goal {
            Goal::Answer(_) => request.max_tokens,
            Goal::Embedding => 0,
        }
    }
}
