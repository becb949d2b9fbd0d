//! A sequence from its question to its end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cake_engine::BLOCK_POSITIONS;

use crate::scheduler::cache::{Keep, Lease, Scope};
use crate::scheduler::request::Request;
use crate::scheduler::sampler::Sampler;
use crate::scheduler::want::Pool;

/// Positions of a prompt after which its state is kept for others, ascending. One is where it parts from prompts of which
/// it shares the first `shared` positions: what is common to them others may begin with, too. The other one is the last
/// where the same prompt could be gone on from: whole blocks before its last token, which is always computed.
pub(super) fn stops(shared: usize, prompt_len: usize) -> Vec<usize> {
    let last = prompt_len.saturating_sub(1) / BLOCK_POSITIONS * BLOCK_POSITIONS;
    vec![shared, last]
}

/// A sequence that has no place yet.
pub(super) struct Waiting {
    pub(super) sequence: u64,
    pub(super) request: Request,
    /// When it was asked for.
    pub(super) since: Duration,
}

/// A sequence that has one.
pub(super) struct Running {
    pub(super) sequence: u64,
    pub(super) scope: Scope,
    /// Its blocks; none from the loss of a stage until there is room for it once more.
    pub(super) lease: Option<Lease>,
    /// Away while a step is in flight whose logits choose the next token, or score the prompt's: then no other step of it
    /// is.
    pub(super) sampler: Option<Box<Sampler>>,
    /// Its final hidden states so far, if it is computed for its embedding.
    pub(super) pool: Option<Pool>,
    /// Tokens that are known: its prompt's and those that were chosen.
    pub(super) known: usize,
    /// Tokens whose rows are computed or on their way.
    pub(super) submitted: usize,
    /// Whether it is one of those that are ready.
    pub(super) is_ready: bool,
    /// Pipelines that were lost since its last token.
    pub(super) losses: usize,
    /// When the first of them was.
    pub(super) lost_since: Option<Duration>,
    pub(super) prompt_len: usize,
    /// Positions of its prompt after which its state is kept for others, as [`stops`] gives them; none without a state.
    pub(super) stops: Vec<usize>,
    /// Most rows of it in one step.
    pub(super) chunk_rows: usize,
    /// Tokens that it may grow to.
    pub(super) longest: usize,
    pub(super) stop_ids: Arc<HashSet<u32>>,
    pub(super) max_tokens: usize,
    pub(super) generated: usize,
    /// When it was asked for, or had its last token.
    pub(super) since: Duration,
    /// The step that came next when it was admitted.
    pub(super) admitted_before: u64,
    /// Whether it reads blocks that others filled.
    pub(super) shares: bool,
}

impl Running {
    /// Rows that are still to be read, and may be now: of its prompt, or of all of it once more.
    pub(super) fn unread(&self) -> usize {
        let may_be_read = !self.is_ready && self.lease.is_some() && self.sampler.is_some();
        if may_be_read { self.known - self.submitted } else { 0 }
    }

    /// Those of them that may go into the next step: of the prompt up to its next stop, or generated ones, which are
    /// computed in different ways.
    pub(super) fn next_unread(&self) -> usize {
        let stop = self.stops.iter().find(|stop| **stop > self.submitted);
        let prompt_end = stop.copied().unwrap_or(self.prompt_len);
        let prompt = prompt_end.saturating_sub(self.submitted).min(self.unread());
        let alike = if prompt > 0 { prompt } else { self.unread() };
        alike.min(self.chunk_rows)
    }

    /// How long the state after the rows up to `end` is of use to anybody.
    pub(super) fn keep(&self, end: usize) -> Keep {
        match end > self.prompt_len {
            true => Keep::UntilNext,
            false if self.stops.contains(&end) => Keep::Long,
            false => Keep::No,
        }
    }

    /// Forgets what the stages held of it. If they held something, it may be the cause of their loss.
    pub(super) fn rewind(&mut self, now: Duration) {
        self.submitted = 0;
        if self.lease.take().is_some() {
            self.losses += 1;
            self.lost_since.get_or_insert(now);
        }
        (self.is_ready, self.shares) = (false, false);
        if let Some(pool) = &mut self.pool {
            *pool = Pool::default();
        }
    }
}
