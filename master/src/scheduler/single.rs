//! One sequence over a pipeline of its own, decided by the same `core` as many are, in the task of whoever asks: between
//! a token's logits and the next step there is no other task and no channel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{block_in_place, yield_now};

use super::core::{ComposedStep, Core, Effect, PipelineShape};
use super::sampler::Sampler;
use super::want::{Chosen, Want};
use super::{Choice, Error, Event, Goal, Limits, OnLoss, Request, Scope};
use crate::generate::{self, Answer, Ends, Finish, Options, StepTiming, Timing};
use crate::pipeline::{Pipeline, Ticket};
use crate::sizing::Promise;

/// Its number on every stage.
const SEQUENCE: u64 = 1;

/// Generates over a pipeline.
pub struct Generator<'a> {
    /// The stages.
    pub pipeline: &'a Pipeline,
    /// The master's own parts.
    pub ends: &'a Ends,
    /// What the pipeline has room for.
    pub promise: &'a Promise,
}

impl Generator<'_> {
    /// Continues `prompt`; `on_token` sees each id as it is made and says whether to go on.
    ///
    /// # Errors
    /// [`generate::Error`].
    pub async fn generate(
        &self,
        prompt: &[u32],
        options: &Options,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Result<Answer, generate::Error> {
        let mut run = self.begin(prompt, options)?;
        loop {
            // The next step is on its way before anybody looks at the token, which takes time as well.
            let left = run.leave().await;
            if let Some(token) = run.token.take() {
                // Who shows it may have to wait for whoever reads.
                if !block_in_place(|| on_token(token)) {
                    run.over = Some(Finish::Stop);
                }
            }
            if run.over.is_some() {
                break;
            }
            left?;
            run.arrive().await?;
        }
        Ok(run.answer())
    }

    fn begin<'a>(
        &'a self,
        prompt: &[u32],
        options: &'a Options,
    ) -> Result<Run<'a>, generate::Error> {
        let Options { chunk, context, max_tokens, .. } = *options;
        let limits = Limits {
            context,
            parallel: 1,
            most_running: 1,
            kv_blocks: self.promise.kv_blocks(),
            // Nobody begins where this one was: it needs no snapshots, only a slot if there are any.
            state_slots: self.promise.state_slots.min(1),
            chunk,
            prompt_rows: context,
            queue: 0,
        };
        let choice = Choice { options: options.sampling, ..Choice::default() };
        let request = Request {
            prompt: prompt.to_vec(),
            max_tokens,
            stop_ids: Arc::new(options.stop_ids.clone()),
            goal: Goal::Answer(Box::new(choice)),
            scope: Scope::ALL,
        };
        limits.check(&request, self.ends.vocab_size())?;
        // Nobody else waits behind its prompt: all of it may be on its way, as far as the pipeline takes it.
        let shape =
            PipelineShape { stages: context, steps: usize::MAX, chunk, prompt_rows: context };
        let mut core = Core::new(limits, OnLoss::Fail, shape);
        core.submit(SEQUENCE, request, Duration::ZERO);
        let now = Instant::now();
        Ok(Run {
            pipeline: self.pipeline,
            ends: self.ends,
            options,
            core,
            in_flight: VecDeque::new(),
            token: None,
            over: None,
            output_ids: Vec::new(),
            logprobs: Vec::new(),
            prompt_logits: options.keep_prompt_logits.then(Vec::new),
            timing: Timing { hops: self.pipeline.hops(), ..Timing::default() },
            started: now,
            decode_started: now,
            began: now,
            sampling: Duration::ZERO,
        })
    }
}

/// An answer that is being made.
struct Run<'a> {
    pipeline: &'a Pipeline,
    ends: &'a Ends,
    options: &'a Options,
    core: Core,
    /// Steps on their way, the first to leave first.
    in_flight: VecDeque<Leaving>,
    /// The last token, until somebody has seen it.
    token: Option<u32>,
    over: Option<Finish>,
    output_ids: Vec<u32>,
    logprobs: Vec<f32>,
    prompt_logits: Option<Vec<f32>>,
    timing: Timing,
    started: Instant,
    /// When the first token was there.
    decode_started: Instant,
    /// When the last token was about to be chosen, and how long that took.
    began: Instant,
    sampling: Duration,
}

/// A step on its way through the pipeline.
struct Leaving {
    number: u64,
    ticket: Ticket,
    /// What is to be chosen by it.
    want: Option<Want>,
    /// Whether its rows are the prompt's.
    prompt: bool,
    /// How long their embedding took.
    embedding: Duration,
}

impl Run<'_> {
    /// Sends all that can be computed now.
    async fn leave(&mut self) -> Result<(), generate::Error> {
        let effects = self.core.admit(self.started.elapsed());
        self.take(effects)?;
        while let Some(step) = self.core.compose(self.started.elapsed()) {
            let leaving = send(self.pipeline, self.ends, self.options, step).await?;
            self.in_flight.push_back(leaving);
        }
        Ok(())
    }

    /// Waits for the step that left first, and chooses what it is to choose.
    async fn arrive(&mut self) -> Result<(), generate::Error> {
        let Some(leaving) = self.in_flight.pop_front() else {
            return Err(Error::NoStep.into());
        };
        let Leaving { number, ticket, want, prompt, embedding } = leaving;
        let answer = ticket.answer().await?;
        self.timing.add(&answer.stage_us);
        let stages = answer.stage_us.iter().map(|us| u64::from(*us)).sum();
        let began = Instant::now();
        let logits = match answer.rows {
            0 => Vec::new(), // Nothing of it is wanted.
            rows => block_in_place(|| self.ends.score(answer.hidden, rows))?,
        };
        let head = began.elapsed();
        if let (true, Some(all)) = (prompt, &mut self.prompt_logits) {
            all.extend_from_slice(&logits);
        }
        let chosen = match want {
            Some(Want::Token { sequence, sampler, .. }) => {
                if prompt {
                    self.timing.prefill_seconds = self.started.elapsed().as_secs_f64();
                } else {
                    self.timing.decode_steps.push(StepTiming {
                        seconds: self.began.elapsed().as_secs_f64(),
                        stage_seconds: Duration::from_micros(stages).as_secs_f64(),
                        ends_seconds: (self.sampling + embedding + head).as_secs_f64(),
                    });
                }
                let last = logits.len().saturating_sub(self.ends.vocab_size());
                vec![self.choose(sequence, sampler, &logits[last..])?]
            }
            _ => Vec::new(),
        };
        let effects = self.core.apply(number, Ok(chosen), self.started.elapsed());
        self.take(effects)
    }

    fn choose(
        &mut self,
        sequence: u64,
        mut sampler: Box<Sampler>,
        logits: &[f32],
    ) -> Result<Chosen, generate::Error> {
        self.began = Instant::now();
        let token = sampler.choose(logits).map_err(Error::from)?;
        self.sampling = self.began.elapsed();
        if self.output_ids.is_empty() {
            self.timing.first_token_seconds = self.started.elapsed().as_secs_f64();
            self.decode_started = Instant::now();
        }
        Ok(Chosen::Token { sequence, sampler, token: Some(token) })
    }

    /// Takes in what the core decided.
    fn take(&mut self, effects: Vec<Effect>) -> Result<(), generate::Error> {
        for effect in effects {
            match effect {
                Effect::Begun { prompt_tokens, reused_tokens, .. } => {
                    self.timing.reused_tokens = reused_tokens;
                    self.timing.prompt_tokens = prompt_tokens - reused_tokens;
                    self.timing.prompt_chunk = self.options.chunk.rows(self.timing.prompt_tokens);
                }
                Effect::Token { token, .. } => {
                    self.output_ids.push(token.id);
                    self.logprobs.push(token.logprob);
                    self.token = Some(token.id);
                }
                Effect::Scored { .. } => {} // Nobody asks for it here.
                Effect::Over { event: Some(Event::Ended(finish)), .. } => self.over = Some(finish),
                Effect::Over { event: Some(Event::Failed(error)), .. }
                | Effect::StepFailed { error, .. }
                | Effect::PipelineLost { error, .. } => return Err(error.into()),
                Effect::Over { .. } => return Err(Error::NoEnd.into()),
            }
        }
        Ok(())
    }

    fn answer(mut self) -> Answer {
        self.timing.finish(self.output_ids.len(), self.decode_started.elapsed());
        Answer {
            output_ids: self.output_ids,
            logprobs: self.logprobs,
            finish: self.over.unwrap_or(Finish::Length),
            prompt_logits: self.prompt_logits,
            timing: self.timing,
        }
    }
}

/// Sends a step, all rows of which are wanted if it is of a prompt whose logits are kept.
async fn send(
    pipeline: &Pipeline,
    ends: &Ends,
    options: &Options,
    step: ComposedStep,
) -> Result<Leaving, generate::Error> {
    let ComposedStep { number, items, ids, mut wanted, mut wants } = step;
    let prompt = items.iter().all(|item| item.prompt);
    if prompt && options.keep_prompt_logits {
        wanted = (0..ids.len() as u32).collect();
    }
    let began = Instant::now();
    let hidden = ends.embed(&ids)?;
    let embedding = began.elapsed();
    let ticket = pipeline.submit(items, hidden, wanted).await?;
    if !prompt {
        // Whoever writes it to the network may be a task of this thread.
        yield_now().await;
    }
    Ok(Leaving { number, ticket, want: wants.pop(), prompt, embedding })
}
