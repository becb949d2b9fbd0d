//! How long the stages compute for one generated row, as steps tell that come back.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cake_proto::StepItem;

/// Steps whose median counts, the latest ones.
const LATEST: usize = 64;
/// Fewer say nothing yet: the first ones find cold caches.
const LEAST: usize = 16;
/// Steps on their way that are remembered: more than a pipeline takes.
const ON_THEIR_WAY: usize = 64;
/// Most stages that anybody is listened to for.
const STAGES: usize = 256;

/// What steps of one generated row took. A handle: clones see the same steps, also once the pipeline has ended.
#[derive(Clone, Debug, Default)]
pub struct Paces(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// Numbers of steps of one generated row.
    left: VecDeque<u64>,
    /// Microseconds of each stage, one entry per step.
    back: VecDeque<Vec<u32>>,
}

impl Paces {
    /// A step with these items leaves.
    pub(super) fn left(&self, step: u64, items: &[StepItem]) {
        if !matches!(items, [item] if item.rows == 1 && !item.prompt) {
            return;
        }
        let mut seen = self.lock();
        if seen.left.len() == ON_THEIR_WAY {
            seen.left.pop_front();
        }
        seen.left.push_back(step);
    }

    /// It is back, and took each stage so many microseconds.
    pub(super) fn back(&self, step: u64, stage_us: &[u32]) {
        let mut seen = self.lock();
        let Some(place) = seen.left.iter().position(|left| *left == step) else { return };
        seen.left.remove(place);
        if stage_us.is_empty() || stage_us.len() > STAGES {
            return;
        }
        if seen.back.front().is_some_and(|first| first.len() != stage_us.len()) {
            seen.back.clear();
        }
        if seen.back.len() == LATEST {
            seen.back.pop_front();
        }
        seen.back.push_back(stage_us.to_vec());
    }

    /// Forgets what came back so far.
    pub fn forget(&self) {
        self.lock().back.clear();
    }

    /// Seconds that each stage computes for a generated row: medians over what came back since this was asked last,
    /// once that is enough.
    pub fn take(&self) -> Option<Vec<f64>> {
        let back = {
            let mut seen = self.lock();
            if seen.back.len() < LEAST {
                return None;
            }
            std::mem::take(&mut seen.back)
        };
        let median = |stage: usize| {
            let mut all: Vec<u32> = back.iter().map(|stages| stages[stage]).collect();
            all.sort_unstable();
            f64::from(all[all.len() / 2]) * 1e-6
        };
        Some((0..back[0].len()).map(median).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(rows: usize, prompt: bool) -> StepItem {
        StepItem {
            sequence: 1,
            position: 7,
            rows,
            prompt,
            blocks: vec![0],
            known: 0,
            state: None,
            trace: None,
        }
    }

    /// So many steps that took the stages these times.
    fn steps(paces: &Paces, items: &[StepItem], stage_us: &[u32], count: usize) {
        for step in 0..count as u64 {
            paces.left(step, items);
            paces.back(step, stage_us);
        }
    }

    #[test]
    fn the_median_of_generated_rows_counts_once() {
        let paces = Paces::default();
        let row = [item(1, false)];
        steps(&paces, &row, &[9000, 1], LEAST / 2 - 1);
        steps(&paces, &row, &[2000, 500], LEAST / 2);
        assert_eq!(paces.take(), None, "too few");
        steps(&paces, &row, &[2000, 500], 1);
        assert_eq!(paces.take(), Some(vec![0.002, 0.0005]));
        assert_eq!(paces.take(), None, "it was taken");
    }

    #[test]
    fn prompts_several_sequences_and_strangers_do_not_count() {
        let paces = Paces::default();
        steps(&paces, &[item(1, true)], &[5], LATEST);
        steps(&paces, &[item(2, false)], &[5], LATEST);
        steps(&paces, &[item(1, false), item(1, false)], &[5], LATEST);
        (0..LATEST as u64).for_each(|step| paces.back(step, &[5]));
        steps(&paces, &[item(1, false)], &[], LATEST);
        steps(&paces, &[item(1, false)], &[1; STAGES + 1], LATEST);
        assert_eq!(paces.take(), None);
    }

    #[test]
    fn the_latest_steps_of_the_present_stages_count() {
        let paces = Paces::default();
        let row = [item(1, false)];
        steps(&paces, &row, &[9000], LATEST);
        steps(&paces, &row, &[3000], LATEST);
        assert_eq!(paces.take(), Some(vec![0.003]));
        steps(&paces, &row, &[9000], LATEST);
        steps(&paces, &row, &[1000, 2000], LEAST);
        assert_eq!(paces.take(), Some(vec![0.001, 0.002]));
        for step in 0..10 * ON_THEIR_WAY as u64 {
            paces.left(step, &row); // None of these comes back.
        }
        assert_eq!(paces.lock().left.len(), ON_THEIR_WAY);
    }
}
