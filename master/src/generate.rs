//! From token ids to more token ids: prompt in chunks, then one token at a time.
use std::collections::HashSet;
use std::time::{Duration, Instant};

use cake_checkpoint::ModelSpec;
use cake_engine::{Embedding, EngineOptions, Head};
use cake_engine::{SamplingOptions, sample};
use cake_proto::StepItem;
use serde::Serialize;
use tokio::task::block_in_place;

use crate::chunk::Chunk;
use crate::model::EndWeights;
use crate::pipeline::{self, Blocks, Pipeline, Ticket};

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
    /// Nothing to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Longer than what was planned for.
    #[error(
        "the prompt has {tokens} tokens, the planned context is {context}: give a larger --context"
    )]
    PromptTooLong {
        /// Its tokens.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// An id that the model does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_size}")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids there are.
        vocab_size: usize,
    },
    /// No block is free.
    #[error("the KV cache has no room for another sequence")]
    NoBlocks,
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
        let EndWeights { embedding, head, norm } = weights;
        let head = head.unwrap_or_else(|| embedding.clone());
        Ok(Self {
            embedding: Embedding::new(config, embedding)?,
            head: Head::new(config, norm, head, options)?,
            vocab_size: config.vocab_size,
        })
    }

    /// Ids there are.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Hidden states `[ids, hidden_size]` of ids of the vocabulary.
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

    fn logits(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, Error> {
        Ok(block_in_place(|| self.score(hidden, rows))?)
    }
}

/// One sequence: its ids, and the KV blocks that hold them on every stage.
#[derive(Debug, Default)]
pub struct Sequence {
    number: u64,
    computed: Vec<u32>, // Ids whose KV entries are on the stages.
    blocks: Vec<u32>,
}

impl Sequence {
    /// An empty sequence.
    pub fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    fn item(&self, rows: usize, prompt: bool) -> StepItem {
        let position = self.computed.len();
        let blocks = self.blocks.clone();
        StepItem { sequence: self.number, position, rows, prompt, blocks, trace: None }
    }
}

/// Generates over a pipeline.
pub struct Generator<'a> {
    /// The stages.
    pub pipeline: &'a Pipeline,
    /// The master's own parts.
    pub ends: &'a Ends,
}

impl Generator<'_> {
    /// Continues `prompt`; `on_token` sees each id as it is made and says whether to go on.
    ///
    /// What `sequence` has computed already and `prompt` begins with is not computed again.
    ///
    /// # Errors
    /// [`Error`]; the sequence can be used again and is then computed anew.
    pub async fn generate(
        &self,
        sequence: &mut Sequence,
        blocks: &mut Blocks,
        prompt: &[u32],
        options: &Options,
        on_token: impl FnMut(u32) -> bool,
    ) -> Result<Answer, Error> {
        self.check(prompt, options)?;
        let result = self.generate_checked(sequence, blocks, prompt, options, on_token).await;
        if result.is_err() {
            sequence.computed.clear(); // What the stages hold of it is not known.
        }
        result
    }

    async fn generate_checked(
        &self,
        sequence: &mut Sequence,
        blocks: &mut Blocks,
        prompt: &[u32],
        options: &Options,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Result<Answer, Error> {
        let started = Instant::now();
        let mut timing = Timing { hops: self.pipeline.hops(), ..Timing::default() };
        let reused = keep_common_prefix(sequence, prompt);
        timing.reused_tokens = reused;
        timing.prompt_tokens = prompt.len() - reused;
        let (mut logits, prompt_logits) =
            self.prefill(sequence, blocks, prompt, options, &mut timing).await?;
        timing.prefill_seconds = started.elapsed().as_secs_f64();
        let mut ids = prompt.to_vec();
        let mut answer = Answer {
            output_ids: vec![],
            logprobs: vec![],
            finish: Finish::Length,
            prompt_logits,
            timing,
        };
        let mut decode_started = Instant::now();
        while answer.output_ids.len() < options.max_tokens {
            let position = ids.len() as u64;
            let began = Instant::now();
            let sampled = sample(&logits, &ids, position, &options.sampling);
            let sampling = began.elapsed();
            if answer.output_ids.is_empty() {
                answer.timing.first_token_seconds = started.elapsed().as_secs_f64();
                decode_started = Instant::now();
            }
            if options.stop_ids.contains(&sampled.token) {
                answer.finish = Finish::Stop;
                break;
            }
            ids.push(sampled.token);
            answer.output_ids.push(sampled.token);
            answer.logprobs.push(sampled.logprob);
            let full = ids.len() >= options.context;
            let more = !full && answer.output_ids.len() < options.max_tokens;
            // The token is on its way before anybody looks at it, which takes time as well.
            let step = match more {
                true => Some(self.leave(sequence, blocks, sampled.token).await),
                false => None,
            };
            // Who shows it may have to wait for whoever reads.
            if !block_in_place(|| on_token(sampled.token)) {
                answer.finish = Finish::Stop; // If it left: what the stages hold of it is not counted on.
                break;
            }
            if full {
                answer.finish = Finish::Context;
            }
            let Some(step) = step.transpose()? else { break };
            let timing = &mut answer.timing;
            let (next, stages, ends) = self.arrive(sequence, step, timing).await?;
            timing.decode_steps.push(StepTiming {
                seconds: began.elapsed().as_secs_f64(),
                stage_seconds: stages.as_secs_f64(),
                ends_seconds: (sampling + ends).as_secs_f64(),
            });
            logits = next;
        }
        answer.timing.finish(answer.output_ids.len(), decode_started.elapsed());
        Ok(answer)
    }

    fn check(&self, prompt: &[u32], options: &Options) -> Result<(), Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > options.context {
            return Err(Error::PromptTooLong { tokens: prompt.len(), context: options.context });
        }
        let vocab_size = self.ends.vocab_size;
        match prompt.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(Error::UnknownId { id, vocab_size }),
            None => Ok(()),
        }
    }

    /// Computes what is missing of the prompt, chunk after chunk without waiting for answers.
    /// Returns the last row's logits, and all rows' if asked for.
    async fn prefill(
        &self,
        sequence: &mut Sequence,
        blocks: &mut Blocks,
        prompt: &[u32],
        options: &Options,
        timing: &mut Timing,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>), Error> {
        blocks.cover(&mut sequence.blocks, prompt.len()).map_err(|_| Error::NoBlocks)?;
        let chunk = options.chunk.rows(timing.prompt_tokens);
        timing.prompt_chunk = chunk;
        let mut tickets = Vec::new();
        while sequence.computed.len() < prompt.len() {
            let begin = sequence.computed.len();
            let end = prompt.len().min(begin + chunk);
            let ids = &prompt[begin..end];
            let last = end == prompt.len();
            let wanted = match (options.keep_prompt_logits, last) {
                (true, _) => (0..ids.len() as u32).collect(),
                (false, true) => vec![ids.len() as u32 - 1],
                (false, false) => vec![],
            };
            let hidden = self.ends.embed(ids)?;
            let item = sequence.item(ids.len(), true);
            tickets.push(self.pipeline.submit(vec![item], hidden, wanted).await?);
            sequence.computed.extend_from_slice(ids);
        }
        let mut all = Vec::new();
        let mut last = Vec::new();
        for ticket in tickets {
            let answer = ticket.answer().await?;
            timing.add(&answer.stage_us);
            if answer.rows > 0 {
                last = self.ends.logits(answer.hidden, answer.rows)?;
                if options.keep_prompt_logits {
                    all.extend_from_slice(&last);
                }
            }
        }
        let last = last.split_off(last.len().saturating_sub(self.ends.vocab_size));
        Ok((last, options.keep_prompt_logits.then_some(all)))
    }

    /// Sends one more token through the pipeline.
    async fn leave(
        &self,
        sequence: &mut Sequence,
        blocks: &mut Blocks,
        token: u32,
    ) -> Result<Leaving, Error> {
        let positions = sequence.computed.len() + 1;
        blocks.cover(&mut sequence.blocks, positions).map_err(|_| Error::NoBlocks)?;
        let began = Instant::now();
        let hidden = self.ends.embed(&[token])?;
        let embedding = began.elapsed();
        let ticket = self.pipeline.submit(vec![sequence.item(1, false)], hidden, vec![0]).await?;
        // Whoever writes it to the network may be a task of this thread.
        tokio::task::yield_now().await;
        Ok(Leaving { token, ticket, embedding })
    }

    /// Waits for a token that left; returns the logits of the next, and the time that the stages and the master's own
    /// ends took for them.
    async fn arrive(
        &self,
        sequence: &mut Sequence,
        Leaving { token, ticket, embedding }: Leaving,
        timing: &mut Timing,
    ) -> Result<(Vec<f32>, Duration, Duration), Error> {
        let answer = ticket.answer().await?;
        sequence.computed.push(token);
        timing.add(&answer.stage_us);
        let stages = answer.stage_us.iter().map(|us| u64::from(*us)).sum();
        let began = Instant::now();
        let logits = self.ends.logits(answer.hidden, answer.rows)?;
        Ok((logits, Duration::from_micros(stages), embedding + began.elapsed()))
    }
}

/// A token on its way through the pipeline.
struct Leaving {
    token: u32,
    ticket: Ticket,
    /// How long its embedding took.
    embedding: Duration,
}

/// Forgets what the sequence computed beyond its common prefix with `prompt`; at least the last
/// prompt token is computed, since its logits are needed. Returns the length of what is kept.
fn keep_common_prefix(sequence: &mut Sequence, prompt: &[u32]) -> usize {
    let same = sequence.computed.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    sequence.computed.truncate(same.min(prompt.len().saturating_sub(1)));
    sequence.computed.len()
}

impl Timing {
    fn add(&mut self, stage_us: &[u32]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_turn_keeps_the_common_prefix_and_computes_at_least_one_token() {
        let mut sequence = Sequence { computed: vec![1, 2, 3, 4], ..Sequence::new(1) };
        assert_eq!(keep_common_prefix(&mut sequence, &[1, 2, 3, 9, 9]), 3);
        assert_eq!(keep_common_prefix(&mut sequence, &[1, 2, 3]), 2);
        assert_eq!(keep_common_prefix(&mut sequence, &[7]), 0);
    }
}
