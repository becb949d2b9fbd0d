//! The stages that steps go over, and what goes into the next one.

use std::sync::Arc;

use super::actor::Actor;
use super::batch::{eased, prompt_rows, share};
use super::sequence::{Composed, Running};
use crate::chunk::Chunk;
use crate::pipeline::Pipeline;

/// The stages, as long as they are whole.
pub(super) struct Line {
    pub(super) pipeline: Pipeline,
    /// Names of its stages.
    pub(super) stages: Arc<[String]>,
    /// Steps that are to be in flight.
    pub(super) steps: usize,
    /// How a prompt is cut into steps.
    pub(super) chunk: Chunk,
    /// Most prompt rows in one step, of all prompts.
    pub(super) prompt_rows: usize,
}

impl Line {
    pub(super) fn new(pipeline: Pipeline, chunk: Chunk, prompt_rows: usize) -> Self {
        // One for each stage, and one whose logits the master computes; alone, they would share its cores.
        let steps = match pipeline.hops() {
            0 => 1,
            _ => pipeline.stages().len() + 1,
        };
        let stages = pipeline.stages().iter().map(|stage| stage.worker.clone()).collect();
        Self { pipeline, stages, steps, chunk, prompt_rows }
    }

    /// Most prompt rows in all steps. They take long, and more of them than there are stages only make those who come
    /// later wait.
    pub(super) fn most_prompt_rows(&self) -> usize {
        self.stages.len() * self.prompt_rows
    }
}

impl Actor {
    /// The next step, if anybody has something to compute.
    pub(super) fn compose(&mut self) -> Option<Composed> {
        let line = self.line.as_ref()?;
        // As many rows as the longest prompt's own steps have: no stage waits for a longer step than others.
        let unread = self.running.iter().filter(|one| one.unread() > 0);
        let rows = unread.map(|one| one.chunk_rows).max().unwrap_or(0).min(line.prompt_rows);
        // Stages have room for no more rows than that; however many sequences generate, prompts go on at half of the
        // speed at least.
        let most_rows = line.prompt_rows + self.shared.limits.parallel;
        let generates = |one: &&Running| one.generated > 0 && one.lease.is_some();
        let generating = self.running.iter().filter(generates).count();
        let share = share(generating, line.steps).min(self.ready.len());
        let share = share.min(most_rows - rows.div_ceil(2));
        let mut step = Composed::default();
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
        if self.prompt_rows_out + rows > line.most_prompt_rows() {
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
