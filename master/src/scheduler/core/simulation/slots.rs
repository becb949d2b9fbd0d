//! What happens to the slots for states as a step is composed.

use std::collections::BTreeSet;

use cake_engine::BLOCK_POSITIONS;
use cake_proto::{StateSlots, StepItem};

use super::super::{ComposedStep, Core};
use super::seen::{Seen, What};

/// How the slots were used before a step was composed.
pub(super) struct Before {
    /// Slots that were free.
    free: usize,
    /// Sequences whose state was in a snapshot.
    at_snapshot: BTreeSet<u64>,
}

impl Before {
    pub(super) fn of(core: &Core) -> Self {
        Self { free: core.cache.state_usage().free, at_snapshot: at_snapshot(core) }
    }

    /// Notes what became of them.
    pub(super) fn note(&self, core: &Core, step: &ComposedStep, seen: &mut Seen) {
        let at_snapshot = at_snapshot(core);
        for (index, item) in step.items.iter().enumerate() {
            let Some(StateSlots { from, to }) = item.state else { continue };
            let takes_over = self.at_snapshot.contains(&item.sequence) && from == Some(to);
            // What later items find free may be what earlier ones have left.
            let evicts = index == 0 && self.free == 0 && from != Some(to);
            let is_at_snapshot = at_snapshot.contains(&item.sequence);
            let ends_shared = item.position < item.known && item.position + item.rows == item.known;
            seen.note(What::TakeOver, usize::from(takes_over));
            seen.note(What::Eviction, usize::from(evicts));
            seen.note(What::BranchSnapshot, usize::from(is_at_snapshot && ends_shared));
            seen.note(What::AnswerSnapshot, usize::from(is_at_snapshot && !item.prompt));
            if core.limits.state_slots > 1 {
                stops_at_the_last_border(core, item);
            }
        }
    }
}

/// Whoever comes with the same prompt may begin at the end of its last full block before the last token.
fn stops_at_the_last_border(core: &Core, item: &StepItem) {
    let one = core.running.iter().find(|one| one.sequence == item.sequence).expect("it runs");
    let border = (one.prompt_len - 1) / BLOCK_POSITIONS * BLOCK_POSITIONS;
    let passes = item.position < border && border < item.position + item.rows;
    assert!(!passes || one.pool.is_some(), "{item:?} passes {border}");
}

fn at_snapshot(core: &Core) -> BTreeSet<u64> {
    let has_lease = core.running.iter().filter_map(|one| Some((one.sequence, one.lease.as_ref()?)));
    has_lease.filter(|(_, lease)| lease.is_at_snapshot()).map(|(sequence, _)| sequence).collect()
}
