//! What decides: who waits and who runs, which KV blocks are whose, what goes into the next step, and what follows from
//! a step that ended. It moves nothing and reads no clock: time comes in as a plain value, and what is to be done about
//! a decision goes out as [`Effect`]s, in order. `actor` carries them out.
//!
//! ```text
//! submit ──▶ waiting ──admit──▶ running ──compose──▶ a step in flight ──apply──▶ running or over
//!               │ cancel, give_up  │ ▲                                              │
//!               └──────▶ over ◀────┘ └── resume, after lose_line or a loss ◀────────┘
//! ```

#[cfg(test)]
mod simulation;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::cache::KvCache;
use super::compose::Line;
use super::ease::Ease;
use super::sampler::{Sampler, Token};
use super::sequence::{Running, Waiting};
use super::want::{Chosen, Failed, Want};
use super::{Error, Event, Limits, Load, OnLoss, Request};
use crate::generate::Finish;

/// What is to be done about a decision.
#[derive(Debug)]
pub(super) enum Effect {
    /// A sequence has left the queue.
    Begun {
        sequence: u64,
        /// Since it was asked for.
        waited: Duration,
        prompt_tokens: usize,
        /// Prompt tokens that need not be computed.
        reused_tokens: usize,
    },
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
    /// The line is of no use any more and is to be closed; so many sequences wait for another one.
    LineLost { error: Error, sequences: usize },
}

/// All sequences, and what steps in flight are to bring them.
pub(super) struct Core {
    pub(super) limits: Limits,
    on_loss: OnLoss,
    /// None from the loss of a stage until there is another one in its place.
    pub(super) line: Option<Line>,
    /// Lines before this one.
    line_number: u64,
    pub(super) cache: KvCache,
    pub(super) waiting: VecDeque<Waiting>,
    /// In the order in which they were admitted.
    pub(super) running: Vec<Running>,
    /// Those whose last token waits to be computed, in the order in which it was chosen.
    pub(super) ready: VecDeque<u64>,
    in_flight: HashMap<u64, InFlight>,
    pub(super) next_step: u64,
    /// Rows of prompts in steps that are in flight.
    pub(super) prompt_rows_out: usize,
    /// How many of them there may be beside generated ones.
    pub(super) ease: Ease,
    pub(super) effects: Vec<Effect>,
}

/// A step that has not come back.
struct InFlight {
    /// The line that it went over.
    line_number: u64,
    /// Rows of prompts in it.
    prompt_rows: usize,
    /// If it has generated ones, when it left, and how many of prompts were in it and before it.
    beside: Option<(Duration, usize)>,
    sequences: Vec<u64>,
}

impl Core {
    /// Nobody waits, and all blocks are free.
    pub(super) fn new(limits: Limits, on_loss: OnLoss, line: Line) -> Self {
        Self {
            limits,
            on_loss,
            line: Some(line),
            line_number: 0,
            cache: KvCache::new(limits.kv_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            ready: VecDeque::new(),
            in_flight: HashMap::new(),
            next_step: 0,
            prompt_rows_out: 0,
            ease: Ease::up_to(line.most_prompt_rows()),
            effects: Vec::new(),
        }
    }

    /// Whether nobody waits or runs and no step is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// Whether one more step may be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.line.is_some_and(|line| self.in_flight.len() < line.steps)
    }

    /// How busy it is.
    pub(super) fn load(&self) -> Load {
        let running = self.running.iter().filter(|one| one.lease.is_some()).count();
        Load {
            waiting: self.waiting.len() + self.running.len() - running,
            running,
            steps: self.in_flight.len(),
            kv_blocks: self.cache.usage(),
        }
    }

    /// Queues a sequence that was asked for at `since`. Its request was checked: it fits alone.
    pub(super) fn submit(&mut self, sequence: u64, request: Request, since: Duration) {
        self.waiting.push_back(Waiting { sequence, request, since });
    }

    /// Ends a sequence that nobody asks for any more, if it is there still.
    pub(super) fn cancel(&mut self, sequence: u64) -> Vec<Effect> {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.sequence != sequence);
        if self.waiting.len() < before {
            self.effects.push(Effect::Over { sequence, event: None, generated: 0 });
        }
        self.end(sequence, None);
        self.effects()
    }

    /// Remembers a step that was composed as one that is in flight: `prompt_rows` of its rows are of prompts. Returns
    /// its number.
    pub(super) fn depart(
        &mut self,
        sequences: Vec<u64>,
        prompt_rows: usize,
        generates: bool,
        now: Duration,
    ) -> u64 {
        let number = self.next_step;
        self.next_step += 1;
        self.prompt_rows_out += prompt_rows;
        let beside = generates.then_some((now, self.prompt_rows_out));
        let line_number = self.line_number;
        self.in_flight.insert(number, InFlight { line_number, prompt_rows, beside, sequences });
        number
    }

    /// Takes in what came of a step: what it chose, or why it came to nothing.
    pub(super) fn apply(
        &mut self,
        number: u64,
        chosen: Result<Vec<Chosen>, Failed>,
        now: Duration,
    ) -> Vec<Effect> {
        let Some(step) = self.in_flight.remove(&number) else { return Vec::new() };
        self.prompt_rows_out -= step.prompt_rows;
        if let (Ok(_), Some((left_at, rows))) = (&chosen, step.beside) {
            self.ease.seen(now.saturating_sub(left_at), rows);
        }
        match chosen {
            Ok(chosen) => {
                // Of an embedding everything is computed again.
                let counts =
                    |one: &Chosen| step.line_number == self.line_number || !one.is_pooled();
                let chosen: Vec<Chosen> = chosen.into_iter().filter(counts).collect();
                chosen.into_iter().for_each(|chosen| self.take(chosen, now));
            }
            Err(Failed { error, wants }) => {
                self.take_back(wants);
                if !self.survives(step.line_number, &error) {
                    self.fail(number, &step.sequences, &error);
                }
            }
        }
        self.effects()
    }

    /// Goes on without a line until there is another one, as the one there was is given up.
    pub(super) fn lose_line(&mut self) {
        self.line = None;
    }

    /// Computes everything again that runs, over another line, whose stages hold nothing yet.
    pub(super) fn resume(&mut self, line: Line, now: Duration) -> Vec<Effect> {
        self.ease = Ease::up_to(line.most_prompt_rows()); // Other devices, other times.
        self.line = Some(line);
        self.line_number += 1;
        self.ready.clear();
        for sequence in self.causes(now) {
            let error = Error::LostAgain { losses: super::admit::MOST_LOSSES };
            self.end(sequence, Some(Event::Failed(error)));
        }
        self.cache = KvCache::new(self.limits.kv_blocks);
        for one in &mut self.running {
            one.rewind(now);
            one.chunk_rows = line.chunk.rows(one.known);
        }
        self.place();
        self.effects()
    }

    /// Ends everything, if it waits for a line.
    pub(super) fn give_up(&mut self, error: &Error) -> Vec<Effect> {
        if self.line.is_some() {
            return Vec::new();
        }
        for Waiting { sequence, .. } in std::mem::take(&mut self.waiting) {
            let event = Some(Event::Failed(error.clone()));
            self.effects.push(Effect::Over { sequence, event, generated: 0 });
        }
        let running: Vec<u64> = self.running.iter().map(|one| one.sequence).collect();
        for sequence in running {
            self.end(sequence, Some(Event::Failed(error.clone())));
        }
        self.effects()
    }

    /// What has to be done since this was asked for last.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Waits for another line, if steps over this one can be computed again.
    fn survives(&mut self, line_number: u64, error: &Error) -> bool {
        let survives = self.on_loss == OnLoss::Wait && error.is_loss();
        if survives && line_number == self.line_number && self.line.is_some() {
            self.lose_line();
            let sequences = self.running.len();
            self.effects.push(Effect::LineLost { error: error.clone(), sequences });
        }
        survives
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

    fn take(&mut self, chosen: Chosen, now: Duration) {
        match chosen {
            Chosen::Token { sequence, sampler, token } => {
                self.take_token(sequence, sampler, token, now);
            }
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

    fn take_token(&mut self, sequence: u64, sampler: Box<Sampler>, token: Token, now: Duration) {
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
        let took = now.saturating_sub(std::mem::replace(&mut one.since, now));
        let is_first = one.generated == 1;
        self.effects.push(Effect::Token { sequence, token, took, is_first });
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
    fn end(&mut self, sequence: u64, event: Option<Event>) {
        let Some(index) = self.running.iter().position(|one| one.sequence == sequence) else {
            return;
        };
        let Running { lease, generated, .. } = self.running.remove(index);
        if let Some(lease) = lease {
            self.cache.release(lease);
        }
        self.ready.retain(|ready| *ready != sequence);
        self.effects.push(Effect::Over { sequence, event, generated });
    }

    /// Ends the sequences of a step that failed, and those that share blocks which it may have been to
    /// fill: whoever was admitted after it. What the stages hold is not known any more.
    fn fail(&mut self, number: u64, sequences: &[u64], error: &Error) {
        self.effects.push(Effect::StepFailed { error: error.clone(), sequences: sequences.len() });
        let sharing = |one: &&Running| one.shares && one.admitted_before > number;
        let sharing = self.running.iter().filter(sharing).map(|one| one.sequence);
        let ended: Vec<u64> = sequences.iter().copied().chain(sharing).collect();
        for sequence in ended {
            self.end(sequence, Some(Event::Failed(error.clone())));
        }
        self.cache.forget();
    }
}
