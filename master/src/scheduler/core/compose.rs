//! What goes into the next step.

use std::time::Duration;

use cake_proto::StepItem;

use super::batch::{eased, prompt_rows, share};
use super::sequence::Running;
use super::state::{Core, InFlight};
use crate::scheduler::cache::KvCache;
use crate::scheduler::want::Want;

/// A step before it has hidden states: what is to be embedded and sent.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct ComposedStep {
    /// By which it is known when it comes back.
    pub(in crate::scheduler) number: u64,
    /// One for each of its sequences, without a trace.
    pub(in crate::scheduler) items: Vec<StepItem>,
    /// Ids of all rows.
    pub(in crate::scheduler) ids: Vec<u32>,
    /// Rows whose logits are wanted.
    pub(in crate::scheduler) wanted: Vec<u32>,
    /// What is to come of them, in their order.
    pub(in crate::scheduler) wants: Vec<Want>,
}

impl ComposedStep {
    /// Rows of prompts in it.
    pub(in crate::scheduler) fn prompt_rows(&self) -> usize {
        self.items.iter().filter(|item| item.prompt).map(|item| item.rows).sum()
    }

    /// Adds the next `rows` rows of a sequence that has a place and whose sampler is here.
    fn add(&mut self, cache: &mut KvCache, one: &mut Running, rows: usize) {
        let (begin, end) = (one.submitted, one.submitted + rows);
        let keep = one.keep(end);
        let Some(lease) = &mut one.lease else { return };
        let Some(sampler) = one.sampler.take() else { return };
        // What it is decides its arithmetic: a prompt's rows and generated ones are never one item.
        let prompt = begin < sampler.prompt_len();
        cache.cover(lease, end);
        cache.publish(lease, &sampler.ids()[..end]);
        let state = cache.advance(lease, end, keep);
        self.items.push(StepItem {
            sequence: one.sequence,
            position: begin,
            rows,
            prompt,
            blocks: lease.blocks(end).to_vec(),
            known: begin.max(lease.shared()),
            state,
            trace: None,
        });
        let (chooses, wanted) = (end == sampler.ids().len(), sampler.wanted(begin, end));
        self.ids.extend_from_slice(&sampler.ids()[begin..end]);
        one.submitted = end;
        let here = self.ids.len() as u32;
        if one.pool.is_some() {
            self.wanted.extend(here - rows as u32..here);
            self.wants.push(Want::Pooled { sequence: one.sequence, position: begin, rows });
            one.sampler = Some(sampler);
        } else if wanted > 0 {
            self.wanted.extend(here - wanted as u32..here);
            let sequence = one.sequence;
            self.wants.push(Want::Token { sequence, sampler, rows: wanted, chooses });
        } else {
            one.sampler = Some(sampler);
        }
    }
}

impl Core {
    /// The next step, if anybody has something to compute. From now on it is in flight: what comes of it has to be
    /// applied.
    pub(in crate::scheduler) fn compose(&mut self, now: Duration) -> Option<ComposedStep> {
        let mut step = self.next_step()?;
        let sequences = step.items.iter().map(|item| item.sequence).collect();
        let generates = step.items.iter().any(|item| !item.prompt);
        step.number = self.depart(sequences, step.prompt_rows(), generates, now);
        Some(step)
    }

    /// Remembers a step that was composed as one that is in flight: `prompt_rows` of its rows are of prompts. Returns
    /// its number.
    fn depart(
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
        let pipeline_number = self.pipeline_number;
        self.in_flight.insert(number, InFlight { pipeline_number, prompt_rows, beside, sequences });
        number
    }

    fn next_step(&mut self) -> Option<ComposedStep> {
        let pipeline = self.pipeline?;
        // As many rows as the longest prompt's own steps have: no stage waits for a longer step than others.
        let unread = self.running.iter().filter(|one| one.unread() > 0);
        let rows = unread.map(|one| one.chunk_rows).max().unwrap_or(0).min(pipeline.prompt_rows);
        // Stages have room for no more rows than that; however many sequences generate, prompts go on at half of the
        // speed at least.
        let most_rows = pipeline.prompt_rows + self.limits.parallel;
        let generates = |one: &&Running| one.generated > 0 && one.lease.is_some();
        let generating = self.running.iter().filter(generates).count();
        let share = share(generating, pipeline.steps).min(self.ready.len());
        let share = share.min(most_rows - rows.div_ceil(2));
        let mut step = ComposedStep::default();
        for sequence in self.ready.drain(..share) {
            if let Some(one) = self.running.iter_mut().find(|one| one.sequence == sequence) {
                one.is_ready = false;
                step.add(&mut self.cache, one, 1);
            }
        }
        let unread = self.running.iter().map(Running::next_unread).sum();
        let rows = rows.min(most_rows - step.ids.len()).min(unread);
        // Whoever generates keeps a pace; who has more to read waits a little longer.
        let rows = match generating {
            0 => rows,
            _ => eased(rows, self.ease.rows(), self.prompt_rows_out, step.items.is_empty()),
        };
        if self.prompt_rows_out + rows > pipeline.most_prompt_rows() {
            return (!step.items.is_empty()).then_some(step);
        }
        let left: Vec<usize> = self.running.iter().map(Running::next_unread).collect();
        let unread: Vec<usize> = (0..left.len()).filter(|index| left[*index] > 0).collect();
        let left: Vec<usize> = unread.iter().map(|index| left[*index]).collect();
        for (index, rows) in unread.into_iter().zip(prompt_rows(&left, rows)) {
            if rows > 0 {
                step.add(&mut self.cache, &mut self.running[index], rows);
            }
        }
        debug_assert!(step.ids.len() <= most_rows, "{} rows", step.ids.len());
        (!step.items.is_empty()).then_some(step)
    }
}
