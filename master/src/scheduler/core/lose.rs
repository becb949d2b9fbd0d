//! What follows from the loss of a pipeline: everything waits for another one, over which it is computed again.

use std::time::Duration;

use super::ease::Ease;
use super::effect::Effect;
use super::sequence::Running;
use super::shape::PipelineShape;
use super::state::Core;
use crate::scheduler::cache::KvCache;
use crate::scheduler::request::{Error, Event};

/// Pipelines that a sequence may lose before its next token: after so many, and so long without a token, it is taken
/// to be the cause. A bad link breaks as often within a second.
const MOST_LOSSES: usize = 5;
const LONG_WITHOUT: Duration = Duration::from_secs(60);

impl Core {
    /// Goes on without a pipeline until there is another one, as the one there was is given up.
    pub(in crate::scheduler) fn lose_pipeline(&mut self) {
        self.pipeline = None;
    }

    /// Computes everything again that runs, over another pipeline, whose stages hold nothing yet.
    pub(in crate::scheduler) fn resume(
        &mut self,
        pipeline: PipelineShape,
        now: Duration,
    ) -> Vec<Effect> {
        self.ease = Ease::up_to(pipeline.most_prompt_rows()); // Other devices, other times.
        self.pipeline = Some(pipeline);
        self.pipeline_number += 1;
        self.ready.clear();
        for sequence in self.causes(now) {
            let error = Error::LostAgain { losses: MOST_LOSSES };
            self.end(sequence, Some(Event::Failed(error)));
        }
        self.cache = KvCache::new(self.limits.kv_blocks, self.limits.state_slots);
        for one in &mut self.running {
            one.rewind(now);
            one.chunk_rows = pipeline.chunk.rows(one.known);
        }
        self.place();
        self.effects()
    }

    /// Those that seem to be the cause of the losses of pipelines.
    fn causes(&self, now: Duration) -> Vec<u64> {
        let is_cause = |one: &&Running| {
            let long =
                one.lost_since.is_some_and(|since| now.saturating_sub(since) >= LONG_WITHOUT);
            one.losses >= MOST_LOSSES && long
        };
        self.running.iter().filter(is_cause).map(|one| one.sequence).collect()
    }
}
