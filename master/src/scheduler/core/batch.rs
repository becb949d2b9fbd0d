//! What goes into the next step: a pure function of who waits for what.

/// How many of the sequences that generate, in this step and in others, go into one of so many steps that
/// are to be in flight, so that all have some.
pub(super) fn share(generating: usize, steps: usize) -> usize {
    generating.div_ceil(steps.max(1)).max(1)
}

/// How many rows of prompts go into a step beside those who generate, of which `room` may be on their way at once and
/// `out` are. A part of that room goes along with generated rows, but is no step of its own (`alone`): that would read
/// all weights for a few rows, and come back as small as it went.
pub(super) fn eased(rows: usize, room: usize, out: usize, alone: bool) -> usize {
    let (most, left) = (rows.min(room), room.saturating_sub(out));
    if alone && left < most { 0 } else { most.min(left) }
}

/// Rows of each prompt that go into the next step. `left` are the prompts' rows that are not yet on
/// their way, of those that came first, first.
///
/// The first one gets at least half, so that nobody waits for ever; the rest goes to the shortest
/// ones, so that a short prompt does not wait behind a long one.
pub(super) fn prompt_rows(left: &[usize], bound: usize) -> Vec<usize> {
    let mut rows = vec![0; left.len()];
    let Some(&first) = left.first() else { return rows };
    let mut budget = bound;
    let alone = left.iter().filter(|left| **left > 0).count() <= 1;
    let mut give = |rows: &mut [usize], index: usize, most: usize| {
        let given = (left[index] - rows[index]).min(most).min(budget);
        rows[index] += given;
        budget -= given;
    };
    let half = if alone { bound } else { bound.div_ceil(2) };
    give(&mut rows, 0, half.min(first));
    let mut shortest: Vec<usize> = (1..left.len()).collect();
    shortest.sort_by_key(|index| left[*index]); // Stable: of equals the one that came first.
    for index in shortest {
        give(&mut rows, index, usize::MAX);
    }
    give(&mut rows, 0, usize::MAX);
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prompt_alone_gets_everything() {
        assert_eq!(prompt_rows(&[4000], 256), [256]);
        assert_eq!(prompt_rows(&[40], 256), [40]);
        assert_eq!(prompt_rows(&[], 256), [] as [usize; 0]);
    }

    #[test]
    fn a_short_prompt_goes_along_with_a_long_one() {
        assert_eq!(prompt_rows(&[4000, 20], 256), [236, 20]);
        assert_eq!(prompt_rows(&[4000, 3000, 20], 256), [128, 108, 20]);
        assert_eq!(prompt_rows(&[4000, 500], 256), [128, 128]);
        assert_eq!(prompt_rows(&[4000, 20], 8), [4, 4], "beside generated ones");
    }

    #[test]
    fn a_part_of_what_may_go_beside_others_does_not_go_alone() {
        assert_eq!(eased(512, 64, 0, true), 64);
        assert_eq!(eased(512, 64, 40, true), 0, "it waits for those to come back");
        assert_eq!(eased(512, 64, 40, false), 24);
        assert_eq!(eased(20, 64, 40, true), 20, "a whole prompt");
        assert_eq!(eased(512, 64, 80, false), 0);
    }

    #[test]
    fn steps_share_the_generating_sequences() {
        assert_eq!((share(8, 3), share(8, 1), share(1, 3), share(0, 3)), (3, 8, 1, 1));
    }

    proptest! {
        #[test]
        fn rows_are_within_the_bound_and_none_are_wasted(
            left in prop::collection::vec(0..600usize, 0..9),
            bound in 1..300usize,
        ) {
            let rows = prompt_rows(&left, bound);
            let sum: usize = rows.iter().sum();
            prop_assert_eq!(sum, bound.min(left.iter().sum()));
            prop_assert!(rows.iter().zip(&left).all(|(rows, left)| rows <= left));
            if let Some(first) = left.first() {
                prop_assert!(rows[0] >= (*first).min(bound.div_ceil(2)));
            }
        }
    }
}
