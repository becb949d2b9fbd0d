//! What the core has to know of a pipeline.

use crate::chunk::Chunk;

/// What is to be known of the stages that steps go over.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct PipelineShape {
    /// How many there are.
    pub(in crate::scheduler) stages: usize,
    /// Steps that are to be in flight.
    pub(in crate::scheduler) steps: usize,
    /// How a prompt is cut into steps.
    pub(in crate::scheduler) chunk: Chunk,
    /// Most prompt rows in one step, of all prompts.
    pub(in crate::scheduler) prompt_rows: usize,
}

impl PipelineShape {
    /// So many stages, all of them the master's own if it is `alone`.
    pub(in crate::scheduler) fn new(
        stages: usize,
        alone: bool,
        chunk: Chunk,
        prompt_rows: usize,
    ) -> Self {
        // One for each stage, and one whose logits the master computes; alone, they would share its cores.
        let steps = if alone { 1 } else { stages + 1 };
        Self { stages, steps, chunk, prompt_rows }
    }

    /// Most prompt rows in all steps. They take long, and more of them than there are stages only make those who come
    /// later wait.
    pub(in crate::scheduler) fn most_prompt_rows(&self) -> usize {
        self.stages * self.prompt_rows
    }
}
