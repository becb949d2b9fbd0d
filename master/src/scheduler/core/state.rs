//! The state that all decisions are made on, and what is asked of it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::ease::Ease;
use super::effect::Effect;
use super::sequence::{Running, Waiting};
use super::shape::PipelineShape;
use crate::scheduler::cache::KvCache;
use crate::scheduler::request::{Limits, Load, OnLoss};

/// All sequences, and what steps in flight are to bring them.
pub(in crate::scheduler) struct Core {
    pub(super) limits: Limits,
    pub(super) on_loss: OnLoss,
    /// None from the loss of a stage until there is another one in its place.
    pub(super) pipeline: Option<PipelineShape>,
    /// Pipelines before this one.
    pub(super) pipeline_number: u64,
    pub(super) cache: KvCache,
    pub(super) waiting: VecDeque<Waiting>,
    /// In the order in which they were admitted.
    pub(super) running: Vec<Running>,
    /// Those whose last token waits to be computed, in the order in which it was chosen.
    pub(super) ready: VecDeque<u64>,
    pub(super) in_flight: HashMap<u64, InFlight>,
    pub(super) next_step: u64,
    /// Rows of prompts in steps that are in flight.
    pub(super) prompt_rows_out: usize,
    /// How many of them there may be beside generated ones.
    pub(super) ease: Ease,
    pub(super) effects: Vec<Effect>,
}

/// A step that has not come back.
pub(super) struct InFlight {
    /// The pipeline that it went over.
    pub(super) pipeline_number: u64,
    /// Rows of prompts in it.
    pub(super) prompt_rows: usize,
    /// If it has generated ones, when it left, and how many of prompts were in it and before it.
    pub(super) beside: Option<(Duration, usize)>,
    pub(super) sequences: Vec<u64>,
}

impl Core {
    /// Nobody waits, and all blocks and slots are free.
    pub(in crate::scheduler) fn new(
        limits: Limits,
        on_loss: OnLoss,
        pipeline: PipelineShape,
    ) -> Self {
        Self {
            limits,
            on_loss,
            pipeline: Some(pipeline),
            pipeline_number: 0,
            cache: KvCache::new(limits.kv_blocks, limits.state_slots),
            waiting: VecDeque::new(),
            running: Vec::new(),
            ready: VecDeque::new(),
            in_flight: HashMap::new(),
            next_step: 0,
            prompt_rows_out: 0,
            ease: Ease::up_to(pipeline.most_prompt_rows()),
            effects: Vec::new(),
        }
    }

    /// Whether nobody waits or runs and no step is in flight.
    pub(in crate::scheduler) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.in_flight.is_empty()
    }

    /// Whether one more step may be in flight.
    pub(in crate::scheduler) fn has_room(&self) -> bool {
        self.pipeline.is_some_and(|pipeline| self.in_flight.len() < pipeline.steps)
    }

    /// How busy it is.
    pub(in crate::scheduler) fn load(&self) -> Load {
        let running = self.running.iter().filter(|one| one.lease.is_some()).count();
        Load {
            waiting: self.waiting.len() + self.running.len() - running,
            running,
            steps: self.in_flight.len(),
            kv_blocks: self.cache.usage(),
            state_slots: self.cache.state_usage(),
        }
    }

    /// What has to be done since this was asked for last.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
