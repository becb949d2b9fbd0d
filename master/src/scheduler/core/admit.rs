//! Who gets blocks: those that wait, as room comes free, and those that lost theirs with a stage.

use std::time::Duration;

use super::effect::Effect;
use super::sequence::{Running, Waiting, stops};
use super::shape::PipelineShape;
use super::state::Core;
use crate::scheduler::request::{Goal, Request};
use crate::scheduler::sampler::{Choice, Sampler};
use crate::scheduler::want::Pool;

impl Core {
    /// Queues a sequence that was asked for at `since`. Its request was checked: it fits alone.
    pub(in crate::scheduler) fn submit(
        &mut self,
        sequence: u64,
        request: Request,
        since: Duration,
    ) {
        self.waiting.push_back(Waiting { sequence, request, since });
    }

    /// Admits those that wait, in order, as long as there is a pipeline, and room for the first: blocks for all that it
    /// may need.
    pub(in crate::scheduler) fn admit(&mut self, now: Duration) -> Vec<Effect> {
        // Whoever lost blocks with a stage has come before.
        if let Some(pipeline) = self.pipeline
            && self.place()
        {
            let most = self.limits.most_running;
            while self.running.len() < most && self.admit_first(&pipeline, now) {}
        }
        self.effects()
    }

    /// Gives those that lost their blocks with a stage others, in the order in which they were first admitted, as long
    /// as there is room; false if some still have none.
    ///
    /// They share nothing: whoever reads a prefix that another one is still to compute would have to wait for its
    /// steps, and rows that were computed as a prompt's would now be read as generated ones. So they may need more
    /// blocks than before, and some wait until others end. Each fits alone, so that all have their turn.
    pub(super) fn place(&mut self) -> bool {
        let lost = self.running.iter_mut().filter(|one| one.lease.is_none());
        for one in lost {
            let lease = self.cache.admit(one.scope, &[], one.longest);
            let Ok((lease, _)) = lease else { return false };
            one.lease = Some(lease);
        }
        true
    }

    /// Admits the one that waits for the longest time; false if there is none, or no room for it.
    fn admit_first(&mut self, pipeline: &PipelineShape, now: Duration) -> bool {
        let Some(Waiting { request, .. }) = self.waiting.front() else { return false };
        let longest = self.limits.longest(request);
        // An embedding needs the hidden states of all rows, which no block keeps, and so does a prompt that is scored.
        let known: &[u32] = match &request.goal {
            Goal::Answer(choice) if !choice.scores_prompt => &request.prompt,
            Goal::Answer(_) | Goal::Embedding => &[],
        };
        let Ok((lease, reused)) = self.cache.admit(request.scope, known, longest) else {
            return false;
        };
        let Some(Waiting { sequence, request, since }) = self.waiting.pop_front() else {
            unreachable!("it was there a moment ago");
        };
        let prompt_len = request.prompt.len();
        let stops = match request.goal {
            // In the only slot nothing is kept: the next rows of the same sequence go on in it.
            Goal::Answer(_) if self.limits.state_slots > 1 => stops(lease.shared(), prompt_len),
            _ => Vec::new(),
        };
        self.effects.push(Effect::Begun {
            sequence,
            waited: now.saturating_sub(since),
            prompt_tokens: prompt_len,
            reused_tokens: reused,
        });
        let pool = matches!(request.goal, Goal::Embedding).then(Pool::default);
        let choice = match request.goal {
            Goal::Answer(choice) => *choice,
            Goal::Embedding => Choice::default(),
        };
        self.running.push(Running {
            sequence,
            scope: request.scope,
            shares: lease.shared() > 0,
            lease: Some(lease),
            known: prompt_len,
            submitted: reused,
            is_ready: false,
            losses: 0,
            lost_since: None,
            prompt_len,
            stops,
            chunk_rows: pipeline.chunk.rows(prompt_len - reused),
            longest,
            stop_ids: request.stop_ids,
            max_tokens: request.max_tokens,
            generated: 0,
            since,
            pool,
            sampler: Some(Box::new(Sampler::new(request.prompt, choice))),
            admitted_before: self.next_step,
        });
        true
    }
}
