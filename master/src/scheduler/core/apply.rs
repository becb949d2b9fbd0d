//! What follows from a step that came back, or came to nothing.

use std::time::Duration;

use super::effect::Effect;
use super::sequence::Running;
use super::state::Core;
use crate::generate::Finish;
use crate::scheduler::request::{Error, Event, OnLoss};
use crate::scheduler::sampler::{Sampler, Token};
use crate::scheduler::want::{Chosen, Failed, Want};

impl Core {
    /// Takes in what came of a step: what it chose, or why it came to nothing.
    pub(in crate::scheduler) fn apply(
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
                    |one: &Chosen| step.pipeline_number == self.pipeline_number || !one.is_pooled();
                let chosen: Vec<Chosen> = chosen.into_iter().filter(counts).collect();
                chosen.into_iter().for_each(|chosen| self.take(chosen, now));
            }
            Err(Failed { error, wants }) => {
                self.take_back(wants);
                if !self.survives(step.pipeline_number, &error) {
                    self.fail(number, &step.sequences, &error);
                }
            }
        }
        self.effects()
    }

    /// Takes back what was to come of steps that came to nothing.
    fn take_back(&mut self, wants: Vec<Want>) {
        for want in wants {
            if let Want::Token { sequence, sampler, .. } = want
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

    fn take_token(
        &mut self,
        sequence: u64,
        mut sampler: Box<Sampler>,
        token: Option<Token>,
        now: Duration,
    ) {
        let Some(one) = self.running.iter_mut().find(|one| one.sequence == sequence) else {
            return; // It was cancelled meanwhile.
        };
        let Some(token) = token else {
            one.sampler = Some(sampler); // A part of its prompt is scored.
            return;
        };
        let (length, complete) = (sampler.ids().len(), sampler.is_complete());
        if let Some(tokens) = sampler.take_scores() {
            self.effects.push(Effect::Scored { sequence, tokens });
        }
        one.sampler = Some(sampler);
        one.known = length;
        (one.losses, one.lost_since) = (0, None);
        if one.max_tokens == 0 {
            return self.end(sequence, Some(Event::Ended(Finish::Length)));
        }
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

    /// Waits for another pipeline, if steps over this one can be computed again.
    fn survives(&mut self, pipeline_number: u64, error: &Error) -> bool {
        let survives = self.on_loss == OnLoss::Wait && error.is_loss();
        if survives && pipeline_number == self.pipeline_number && self.pipeline.is_some() {
            self.lose_pipeline();
            let sequences = self.running.len();
            self.effects.push(Effect::PipelineLost { error: error.clone(), sequences });
        }
        survives
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
