//! How many rows of a prompt go into one step: all that pays where there is one stage, and over
//! several so few that each of them has work while the others compute.

/// Most rows of a step where the master computes every layer: products with as many rows reach the
/// processor's full rate.
const MOST_ALONE: usize = 512;
/// Most rows of a step between stages. More than that were not measured to be faster, and every
/// stage's scratch memory grows with them.
const MOST_SHARED: usize = 256;
/// Fewest rows of a step that are chosen: with fewer, reading the weights and making them ready is what takes
/// the time.
const FEWEST: usize = 64;
/// Chosen numbers of rows are multiples of this, whole tiles of the kernels.
const GRANULE: usize = 32;
/// Steps that a prompt is cut into for each stage: while the first step travels through `n` stages,
/// and the last one does, others wait, so `n - 1` steps' time is lost beside the prompt's own. But each
/// step reads all weights: beside bf16 one core with AMX reads 128 rows at 1.2 times the rate of 64, and
/// 256 at 1.4 times.
const STEPS_PER_STAGE: usize = 2;

/// Rows of a prompt in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    most: usize,
    /// Steps that a prompt is to be cut into, as far as they are not too small; `None` for as few
    /// as `most` allows.
    steps: Option<usize>,
}

impl Chunk {
    /// Always so many, the prompt's last step aside.
    pub fn exactly(rows: usize) -> Self {
        Self { most: rows.max(1), steps: None }
    }

    /// At most `most`, over so many stages.
    pub fn over_stages(stages: usize, most: usize) -> Self {
        Self { most: most.max(1), steps: Some(STEPS_PER_STAGE * stages.max(1)) }
    }

    /// Rows of each step but the last one for a prompt of `tokens` tokens; at least 1.
    pub fn rows(self, tokens: usize) -> usize {
        let Some(steps) = self.steps else { return self.most };
        let rows = tokens.div_ceil(steps).next_multiple_of(GRANULE);
        rows.max(FEWEST).min(self.most)
    }
}

/// Bounds of a step's rows that a plan is tried with, one after the other: stages need scratch memory
/// for as many, so that where memory is short fewer may fit. The flag says that a plan with this bound
/// is good only if the master computes every layer. No bound is beyond the `context` of a sequence.
pub fn bounds(context: usize, master_may_compute: bool) -> impl Iterator<Item = (usize, bool)> {
    let alone = master_may_compute.then_some((MOST_ALONE, true));
    let shared = [MOST_SHARED, MOST_SHARED / 2, FEWEST].map(|most| (most, false));
    alone.into_iter().chain(shared).map(move |(most, alone)| (most.min(context).max(1), alone))
}

/// The bound that is tried first where there are workers.
pub fn first_bound(context: usize) -> usize {
    MOST_SHARED.min(context).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_taken_as_it_is() {
        assert_eq!(Chunk::exactly(7).rows(1000), 7);
        assert_eq!(Chunk::exactly(0).rows(1), 1);
    }

    #[test]
    fn every_stage_of_several_has_work_and_no_step_is_too_small_or_too_large() {
        for stages in 1..9 {
            let chunk = Chunk::over_stages(stages, MOST_SHARED);
            let mut before = 0;
            for tokens in 1..9000 {
                let rows = chunk.rows(tokens);
                assert!((FEWEST..=MOST_SHARED).contains(&rows) && rows.is_multiple_of(GRANULE));
                assert!(rows >= before, "longer prompts have no smaller steps");
                before = rows;
                let steps = tokens.div_ceil(rows);
                // Beyond two granules, one more than asked for is half as much again at most.
                assert!(3 * steps >= 2 * STEPS_PER_STAGE * stages || rows <= 2 * GRANULE);
            }
            assert_eq!(chunk.rows(usize::MAX - 64), MOST_SHARED);
        }
        assert_eq!(Chunk::over_stages(2, 40).rows(9000), 40, "scratch memory has room for no more");
    }

    #[test]
    fn plans_are_tried_with_fewer_rows_from_bound_to_bound() {
        let all: Vec<_> = bounds(4096, true).collect();
        assert_eq!(all, [(512, true), (256, false), (128, false), (64, false)]);
        assert_eq!(bounds(4096, false).next(), Some((first_bound(4096), false)));
        assert!(bounds(100, true).all(|(most, _)| most <= 100), "no prompt is longer");
    }
}
