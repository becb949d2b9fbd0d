//! How long steps take, as they were seen to: from that it follows when one is missed.
use std::time::Duration;

/// A step is missed when it takes so many times as long as those of its size did.
const TIMES: u32 = 4;
/// Nothing is missed sooner: devices and links pause for a second now and then.
const LEAST: Duration = Duration::from_millis(1500);
/// Before any step was seen: the first one finds weights that are not in memory yet.
const FIRST: Duration = Duration::from_millis(2500);
/// Whoever is asked where a step is loses nothing by it: so nobody waits longer before asking.
const MOST: Duration = Duration::from_millis(2500);
/// A stage that says that it computes is believed for so many times as long as whole steps took,
const WORK_TIMES: u32 = 20;
/// and at least for so long: until then a busy device may be no more than that.
const WORK_LEAST: Duration = Duration::from_secs(30);
/// The same before any step was seen, unless the plan expects more.
const WORK_FIRST: Duration = Duration::from_secs(120);
/// A step that takes longer has failed, whatever its stages say: slower than any device worth using.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Longer than that nobody is believed: then it is known who kept the step when its time is over.
const WORK_MOST: Duration = Duration::from_secs(270);
const _: () = assert!(WORK_MOST.as_secs() + 2 * MOST.as_secs() < STEP_TIMEOUT.as_secs());
/// Sizes that are told apart: powers of two up to the most rows of a step.
const SIZES: usize = 14;

/// The longest times lately, by the size of the step.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    longest: [Option<Duration>; SIZES],
    /// How long a row takes, as the plan has it.
    planned: Duration,
}

impl Pace {
    /// No step was seen yet; the plan expects that one of a single row takes so long.
    pub(super) fn planned(seconds: f64) -> Self {
        let planned = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self { planned, ..Self::default() }
    }

    /// A step of so many rows came back, so long after it left or the one before it came back.
    pub(super) fn seen(&mut self, rows: usize, took: Duration) {
        let longest = &mut self.longest[size(rows)];
        // What was long once is forgotten over some dozens of steps.
        *longest = Some(longest.map_or(took, |before| took.max(before - (before / 16))));
    }

    /// Longest that such a step is expected to take; none as long as there is nothing to go by.
    fn expected(&self, rows: usize) -> Option<Duration> {
        let size = size(rows);
        let larger = self.longest[size..].iter().flatten().next();
        let smaller = || {
            let below = self.longest[..size].iter().enumerate().rev();
            let (at, took) = below.filter_map(|(at, took)| Some((at, (*took)?))).next()?;
            took.checked_mul(1 << (size - at)) // A row never costs more beside others than alone.
        };
        larger.copied().or_else(smaller)
    }

    /// How long a step of so many rows may take before somebody asks where it is.
    pub(super) fn patience(&self, rows: usize) -> Duration {
        let expected = self.expected(rows);
        expected.map_or(FIRST, |took| took.saturating_mul(TIMES).clamp(LEAST, MOST))
    }

    /// Whether a step of so many rows that is awaited for so long takes longer than others; as long as there is nothing
    /// to go by, any.
    pub(super) fn is_late(&self, rows: usize, waited: Duration) -> bool {
        self.expected(rows).is_none_or(|took| waited > took.saturating_mul(TIMES))
    }

    /// How long a stage may say that it computes such a step.
    pub(super) fn longest_work(&self, rows: usize) -> Duration {
        let longest = match self.expected(rows) {
            Some(took) => took.saturating_mul(WORK_TIMES).max(WORK_LEAST),
            None => {
                let rows = u32::try_from(rows).unwrap_or(u32::MAX);
                self.planned.saturating_mul(rows).saturating_mul(WORK_TIMES).max(WORK_FIRST)
            }
        };
        longest.min(WORK_MOST)
    }
}

fn size(rows: usize) -> usize {
    (rows.max(1).ilog2() as usize).min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_step_is_late_long_before_it_is_missed() {
        let mut pace = Pace::default();
        assert!(pace.is_late(1, ms(0)), "nobody knows how long it takes");
        pace.seen(1, ms(20));
        assert!(!pace.is_late(1, ms(80)) && pace.is_late(1, ms(81)));
        assert!(ms(81) < pace.patience(1));
    }

    #[test]
    fn patience_follows_what_steps_of_the_size_took() {
        let mut pace = Pace::default();
        assert_eq!((pace.patience(1), pace.longest_work(1)), (FIRST, WORK_FIRST));
        pace.seen(1, ms(20));
        assert_eq!(pace.patience(1), LEAST, "a pause of a second is no loss");
        pace.seen(1, ms(500));
        assert_eq!(pace.patience(1), ms(2000), "a slow device is waited for");
        pace.seen(1, ms(9000));
        assert_eq!(pace.patience(1), MOST, "who is asked loses nothing");
        assert_eq!(pace.longest_work(1), ms(180_000), "and computes on");
        assert_eq!(pace.longest_work(512), WORK_MOST, "but not for ever");
        for _ in 0..200 {
            pace.seen(1, ms(20));
        }
        assert_eq!(pace.patience(1), LEAST, "what was long once is forgotten");
    }

    #[test]
    fn a_slow_device_has_the_time_that_the_plan_gives_it_for_its_first_step() {
        let pace = Pace::planned(0.02);
        assert_eq!(pace.longest_work(1), WORK_FIRST);
        assert_eq!(pace.longest_work(512), ms(20 * 512 * 20));
        assert_eq!(Pace::planned(f64::INFINITY).longest_work(1), WORK_FIRST);
    }

    #[test]
    fn sizes_that_were_not_seen_are_judged_by_those_that_were() {
        let mut pace = Pace::default();
        pace.seen(1, ms(30));
        assert_eq!(pace.expected(64), Some(ms(30 * 64)), "at most as much for each row");
        pace.seen(256, ms(900));
        assert_eq!(pace.expected(64), Some(ms(900)), "at most as much as for more");
        assert_eq!(pace.expected(1), Some(ms(30)));
        assert_eq!(pace.expected(1 << 20), Some(ms(900 << (SIZES - 1 - 8))));
        assert_eq!(pace.expected(0), pace.expected(1));
    }
}
