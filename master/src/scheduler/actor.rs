//! The task that owns all sequences.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{debug_span, warn};

use super::cache::{KvCache, Usage};
use super::compose::Line;
use super::ease::Ease;
use super::sampler::{Sampler, Token};
use super::sequence::{Running, Waiting};
use super::step::{Chosen, Failed, Seen, Want, choose};
use super::{Command, Error, Event, Limits, Load, OnLoss, Shared};
use crate::generate::{Ends, Finish};
use crate::metrics::Occupancy;
use crate::pipeline::Pipeline;

/// Runs until nobody can submit any more and everything has ended, or the master's own weights are damaged, which it says
/// then: nothing that it could compute again would be right.
pub(super) async fn run(
    pipeline: Pipeline,
    ends: Ends,
    on_loss: OnLoss,
    shared: Arc<Shared>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> Option<String> {
    let cache = KvCache::new(shared.limits.kv_blocks);
    let Limits { chunk, prompt_rows, .. } = shared.limits;
    let line = Line::new(pipeline, chunk, prompt_rows);
    let ease = Ease::up_to(line.most_prompt_rows());
    let mut actor = Actor {
        line: Some(line),
        closing: None,
        line_number: 0,
        on_loss,
        ends: Arc::new(ends),
        shared,
        prompt_rows_out: 0,
        ease,
        cache,
        waiting: VecDeque::new(),
        running: Vec::new(),
        ready: VecDeque::new(),
        in_flight: FuturesUnordered::new(),
        next_step: 0,
        damaged: None,
    };
    let mut open = true;
    while open || !actor.is_idle() {
        actor.fill().await;
        actor.tell();
        if actor.damaged.is_some() {
            break;
        }
        tokio::select! {
            command = commands.recv(), if open => match command {
                Some(command) => actor.obey(command),
                None => open = false,
            },
            Some(step) = actor.in_flight.next(), if !actor.in_flight.is_empty() => actor.done(step),
            else => break,
        }
    }
    actor.damaged
}

pub(super) struct Actor {
    /// None from the loss of a stage until there is another one in its place.
    pub(super) line: Option<Line>,
    /// The line before, as long as it is being closed.
    closing: Option<JoinHandle<()>>,
    /// Lines before this one.
    pub(super) line_number: u64,
    on_loss: OnLoss,
    ends: Arc<Ends>,
    pub(super) shared: Arc<Shared>,
    /// Rows of prompts in steps that are in flight.
    pub(super) prompt_rows_out: usize,
    /// How many of them there may be beside generated ones.
    pub(super) ease: Ease,
    pub(super) cache: KvCache,
    pub(super) waiting: VecDeque<Waiting>,
    /// In the order in which they were admitted.
    pub(super) running: Vec<Running>,
    /// Those whose last token waits to be computed, in the order in which it was chosen.
    pub(super) ready: VecDeque<u64>,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>,
    pub(super) next_step: u64,
    /// What is wrong with the embedding or the head, once that is known.
    damaged: Option<String>,
}

/// A step that came back: the sequences that were in it, and those whose next token it chose.
struct Done {
    number: u64,
    /// The line that it went over.
    line_number: u64,
    /// Rows of prompts in it.
    prompt_rows: usize,
    /// If it has generated ones, when it left, and how many of prompts were in it and before it.
    beside: Option<(Instant, usize)>,
    sequences: Vec<u64>,
    chosen: Result<Vec<Chosen>, Failed>,
}

impl Actor {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// Leaves word of how busy it is.
    fn tell(&self) {
        let running = self.running.iter().filter(|one| one.lease.is_some()).count();
        let load = Load {
            waiting: self.waiting.len() + self.running.len() - running,
            running,
            steps: self.in_flight.len(),
            kv_blocks: self.cache.usage(),
        };
        *self.shared.load() = load;
        let Usage { held, idle, free, .. } = load.kv_blocks;
        let Load { waiting, running, steps, .. } = load;
        self.shared.metrics.occupied(Occupancy { waiting, running, steps, held, idle, free });
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Begin { sequence, request, events, since, span } => {
                let queue = debug_span!(parent: &span, "queue");
                self.waiting.push_back(Waiting { sequence, request, events, since, span, queue });
            }
            Command::Cancel { sequence } => {
                let before = self.waiting.len();
                self.waiting.retain(|waiting| waiting.sequence != sequence);
                let cancelled = before - self.waiting.len();
                self.shared.give_back(cancelled);
                if cancelled > 0 {
                    self.shared.metrics.ended("cancelled");
                }
                self.end(sequence, None);
            }
            Command::Suspend(told) => {
                self.close_line();
                let closing = self.closing.take();
                tokio::spawn(async move {
                    if let Some(closing) = closing {
                        closing.await.ok(); // If it panicked, it is over, too.
                    }
                    told.send(()).ok(); // Perhaps nobody waits for it any more.
                });
            }
            Command::Resume(resumed) => self.resume(*resumed),
            Command::GiveUp(why) => self.give_up(&Error::Unrecovered(why)),
            #[cfg(test)]
            Command::Panic => panic!("as it was told to"),
        }
    }

    /// Ends everything that waits for a line.
    fn give_up(&mut self, error: &Error) {
        if self.line.is_some() {
            return;
        }
        for Waiting { events, .. } in self.waiting.drain(..) {
            self.shared.give_back(1);
            self.shared.metrics.ended("failed");
            events.send(Event::Failed(error.clone())).ok(); // Perhaps nobody listens any more.
        }
        let running: Vec<u64> = self.running.iter().map(|one| one.sequence).collect();
        for sequence in running {
            self.end(sequence, Some(Event::Failed(error.clone())));
        }
    }

    /// Waits for another line, if steps over this one can be computed again.
    fn survives(&mut self, line_number: u64, error: &Error) -> bool {
        let survives = self.on_loss == OnLoss::Wait && error.is_loss();
        if survives && line_number == self.line_number && self.line.is_some() {
            warn!(%error, sequences = self.running.len(), "the pipeline is lost: sequences wait");
            self.close_line();
        }
        survives
    }

    /// Gives up the line, if there is one. A step of the master's own may have to end first.
    fn close_line(&mut self) {
        if let Some(Line { pipeline, .. }) = self.line.take() {
            self.closing = Some(tokio::task::spawn_blocking(move || pipeline.close()));
        }
    }

    /// Takes back what was to come of steps that came to nothing.
    fn take_back(&mut self, wants: Vec<Want>) {
        for want in wants {
            if let Want::Token { sequence, sampler } = want
                && let Some(one) = self.running.iter_mut().find(|one| one.sequence == sequence)
            {
                one.sampler = Some(sampler);
            }
        }
    }

    /// Admits and submits until enough steps are in flight or nothing is left to do. A step that cannot be
    /// submitted ends its sequences, so that this comes to an end.
    async fn fill(&mut self) {
        while let Some(line) = &self.line
            && self.in_flight.len() < line.steps
        {
            let chunk = line.chunk;
            self.admit(chunk);
            let Some(step) = self.compose() else { return };
            let Some(line) = &self.line else { return };
            let (number, line_number) = (self.next_step, self.line_number);
            self.next_step += 1;
            let sequences: Vec<u64> = step.items.iter().map(|item| item.sequence).collect();
            let rows = step.items.iter().filter(|item| item.prompt).map(|item| item.rows);
            let prompt_rows: usize = rows.sum();
            let generates = step.items.iter().any(|item| !item.prompt);
            self.shared.metrics.read(prompt_rows);
            let submitted_at = Instant::now();
            let beside = generates.then_some((submitted_at, self.prompt_rows_out + prompt_rows));
            let submitted = match self.ends.embed(&step.ids) {
                Ok(hidden) => {
                    let submitted = line.pipeline.submit(step.items, hidden, step.wanted).await;
                    submitted.map_err(Error::from)
                }
                Err(error) => Err(Error::Engine(Arc::new(error))),
            };
            match submitted {
                Ok(ticket) => {
                    let seen = Seen {
                        shared: self.shared.clone(),
                        stages: line.stages.clone(),
                        sequences: sequences.len(),
                        hops: line.pipeline.hops(),
                        submitted_at,
                        spans: step.spans,
                    };
                    let choose = choose(self.ends.clone(), ticket, step.wants, seen);
                    let done = async move {
                        let chosen = choose.await;
                        Done { number, line_number, prompt_rows, beside, sequences, chosen }
                    };
                    self.in_flight.push(Box::pin(done));
                    self.prompt_rows_out += prompt_rows;
                }
                Err(error) => {
                    self.take_back(step.wants);
                    if !self.survives(line_number, &error) {
                        self.fail(number, &sequences, &error);
                    }
                }
            }
        }
    }

    /// Takes in what a step chose.
    fn done(&mut self, done: Done) {
        let Done { number, line_number, prompt_rows, beside, sequences, chosen } = done;
        self.prompt_rows_out -= prompt_rows;
        if let (Ok(_), Some((left_at, rows))) = (&chosen, beside) {
            self.ease.seen(left_at.elapsed(), rows);
        }
        match chosen {
            Ok(chosen) => {
                // Of an embedding everything is computed again.
                let counts = |one: &Chosen| line_number == self.line_number || !one.is_pooled();
                let chosen: Vec<Chosen> = chosen.into_iter().filter(counts).collect();
                chosen.into_iter().for_each(|chosen| self.take(chosen));
            }
            Err(Failed { error, wants }) => {
                self.take_back(wants);
                if !self.survives(line_number, &error) {
                    self.fail(number, &sequences, &error);
                }
            }
        }
    }

    fn take(&mut self, chosen: Chosen) {
        match chosen {
            Chosen::Token { sequence, sampler, token } => self.take_token(sequence, sampler, token),
            Chosen::Failed { sequence, error } => {
                self.end(sequence, Some(Event::Failed(error.into())));
            }
            Chosen::Pooled { sequence, position, rows, count } => {
                self.take_pooled(sequence, position, rows, count);
            }
        }
    }

    /// Adds rows to an embedding, which ends with the last of them.
    fn take_pooled(&mut self, sequence: u64, position: usize, rows: Vec<f32>, count: usize) {
        let Some(one) = self.running.iter_mut().find(|one| one.sequence == sequence) else {
            return; // It was cancelled meanwhile.
        };
        let prompt_len = one.prompt_len;
        let Some(pool) = &mut one.pool else { return };
        if let Some(mean) = pool.add(position, rows, count, prompt_len) {
            self.end(sequence, Some(Event::Embedding(mean)));
        }
    }

    fn take_token(&mut self, sequence: u64, sampler: Box<Sampler>, token: Token) {
        let Some(one) = self.running.iter_mut().find(|one| one.sequence == sequence) else {
            return; // It was cancelled meanwhile.
        };
        let (length, complete) = (sampler.ids().len(), sampler.is_complete());
        one.sampler = Some(sampler);
        one.known = length;
        (one.losses, one.lost_since) = (0, None);
        if one.stop_ids.contains(&token.id) {
            return self.end(sequence, Some(Event::Ended(Finish::Stop)));
        }
        one.generated += 1;
        let since = std::mem::replace(&mut one.since, Instant::now()).elapsed();
        match one.generated {
            1 => self.shared.metrics.first_token(since),
            _ => self.shared.metrics.next_token(since),
        }
        one.events.send(Event::Token(token)).ok(); // Its end comes as a command.
        if complete {
            self.end(sequence, Some(Event::Ended(Finish::Stop)));
        } else if one.generated >= one.max_tokens {
            self.end(sequence, Some(Event::Ended(Finish::Length)));
        } else if length >= one.longest {
            self.end(sequence, Some(Event::Ended(Finish::Context)));
        } else if one.submitted + 1 == length {
            one.is_ready = true;
            self.ready.push_back(sequence);
        } // Else it is being computed again.
    }

    /// Ends a running sequence, if it is one, and says so.
    pub(super) fn end(&mut self, sequence: u64, event: Option<Event>) {
        let Some(index) = self.running.iter().position(|one| one.sequence == sequence) else {
            return;
        };
        let Running { lease, events, span, generated, .. } = self.running.remove(index);
        if let Some(lease) = lease {
            self.cache.release(lease);
        }
        self.shared.give_back(1);
        self.ready.retain(|ready| *ready != sequence);
        let how = match &event {
            Some(Event::Ended(finish)) => finish.name(),
            Some(Event::Embedding(_)) => "embedding",
            Some(Event::Failed(_)) => "failed",
            _ => "cancelled",
        };
        self.shared.metrics.ended(how);
        span.record("generated_tokens", generated).record("end", how);
        if let Some(event) = event {
            events.send(event).ok(); // Perhaps nobody listens any more.
        }
    }

    /// Ends the sequences of a step that failed, and those that share blocks which it may have been to
    /// fill: whoever was admitted after it. What the stages hold is not known any more.
    fn fail(&mut self, number: u64, sequences: &[u64], error: &Error) {
        warn!(%error, sequences = sequences.len(), "a step failed");
        if let Error::Engine(error) = error
            && matches!(**error, cake_engine::Error::Damaged(_))
        {
            self.damaged = Some(error.to_string());
        }
        let sharing = |one: &&Running| one.shares && one.admitted_before > number;
        let sharing = self.running.iter().filter(sharing).map(|one| one.sequence);
        let ended: Vec<u64> = sequences.iter().copied().chain(sharing).collect();
        for sequence in ended {
            self.end(sequence, Some(Event::Failed(error.clone())));
        }
        self.cache.forget();
    }
}
