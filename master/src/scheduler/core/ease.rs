//! How many rows of prompts may be on their way while others generate: so many that these keep their pace by half.
//!
//! A step reads all weights, so that some rows of prompts beside generated ones cost next to nothing, and many cost as
//! much as they would alone: how many those are differs by device, encoding and stages. It is found by trying.
use std::time::Duration;

/// A generated token may take so many times as long as it does where nobody's prompt is read.
const SLOWER: f64 = 1.8;
/// Fewest rows: prompts go on, however slow that is.
const FEWEST: f64 = 8.0;
/// After a token that was fast enough there may be so many times as many, and after a slow one at least this part.
const MORE: f64 = 1.1;
const LESS: f64 = 0.5;
/// How soon the time alone follows tokens that are faster, and those that are slower.
const FASTER_WEIGHT: f64 = 0.5;
const SLOWER_WEIGHT: f64 = 0.05;

/// The rows, as they were found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ease {
    most: f64,
    rows: f64,
    /// Seconds of a step with generated rows where no prompt is read, if one was seen.
    alone: Option<f64>,
}

impl Ease {
    /// Nothing was seen yet: as many as there may be at all.
    pub(super) fn up_to(most: usize) -> Self {
        let most = most as f64;
        Self { most, rows: most, alone: None }
    }

    /// Rows of prompts that may be on their way beside generated ones.
    pub(super) fn rows(&self) -> usize {
        self.rows as usize
    }

    /// A step with generated rows has come back after so long; so many of prompts were in it and before it.
    pub(super) fn seen(&mut self, took: Duration, prompt_rows: usize) {
        let took = took.as_secs_f64();
        if prompt_rows == 0 {
            let alone = *self.alone.get_or_insert(took);
            let weight = if took < alone { FASTER_WEIGHT } else { SLOWER_WEIGHT };
            self.alone = Some(alone + weight * (took - alone));
            return;
        }
        let Some(alone) = self.alone else { return };
        let part = SLOWER * alone / took.max(f64::MIN_POSITIVE);
        let rows = match part < 1.0 {
            // By what was there, which may have been less than allowed.
            true => self.rows.min(prompt_rows as f64) * part.max(LESS),
            false => self.rows * MORE + 1.0,
        };
        self.rows = rows.clamp(FEWEST.min(self.most), self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes 100 ms for a step of up to 30 rows, and 4 ms for each one more.
    fn took(rows: usize) -> Duration {
        Duration::from_millis(100 + 4 * rows.saturating_sub(30) as u64)
    }

    #[test]
    fn rows_are_found_that_leave_others_half_of_their_pace() {
        let mut ease = Ease::up_to(512);
        ease.seen(took(512), 512);
        assert_eq!(ease.rows(), 512, "nobody knows yet what is slow");
        ease.seen(took(0), 0);
        let mut times = Vec::new();
        for _ in 0..100 {
            let rows = ease.rows();
            times.push(took(rows));
            ease.seen(took(rows), rows);
        }
        assert!((30..=60).contains(&ease.rows()), "{}", ease.rows());
        let mean = times[50..].iter().sum::<Duration>() / 50;
        assert!(mean < 2 * took(0), "{mean:?}");
    }

    #[test]
    fn prompts_go_on_on_the_slowest_device_and_recover_their_speed() {
        let mut ease = Ease::up_to(256);
        ease.seen(Duration::from_millis(1), 0);
        for _ in 0..50 {
            ease.seen(Duration::from_secs(9), ease.rows());
        }
        assert_eq!(ease.rows(), FEWEST as usize);
        for _ in 0..50 {
            ease.seen(Duration::from_millis(1), ease.rows());
        }
        assert_eq!(ease.rows(), 256);
        assert_eq!(Ease::up_to(1).rows(), 1);
    }

    #[test]
    fn a_device_that_has_become_slower_is_measured_anew() {
        let mut ease = Ease::up_to(256);
        ease.seen(Duration::from_millis(10), 0);
        for _ in 0..100 {
            ease.seen(Duration::from_millis(50), 0);
        }
        for _ in 0..10 {
            ease.seen(Duration::from_millis(80), ease.rows());
        }
        assert_eq!(ease.rows(), 256, "80 ms is no more than 1.8 times as long");
    }
}
