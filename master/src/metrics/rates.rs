//! Tokens per second in the last few seconds.

use std::time::Duration;

/// Whole seconds that a rate is taken over, the one under way aside.
const SECONDS: usize = 4;

/// Tokens counted by the second they came in.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// One more than is looked at: the second under way. A slot is used again by a later second.
    slots: [Slot; SECONDS + 1],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    second: u64,
    prompt: u64,
    generated: u64,
}

impl Rates {
    /// Counts tokens that came at `now`, a time since the start that never goes back.
    pub(super) fn add(&mut self, now: Duration, prompt: u64, generated: u64) {
        let second = now.as_secs();
        let slot = &mut self.slots[second as usize % (SECONDS + 1)];
        if slot.second != second {
            *slot = Slot { second, ..Slot::default() };
        }
        slot.prompt += prompt;
        slot.generated += generated;
    }

    /// Tokens per second, of prompts and generated, in the last seconds before the one of `now`.
    pub(super) fn per_second(&self, now: Duration) -> (f64, f64) {
        let end = now.as_secs();
        let begin = end.saturating_sub(SECONDS as u64);
        let recent = self.slots.iter().filter(|slot| (begin..end).contains(&slot.second));
        let sum = recent.fold((0, 0), |sum, slot| (sum.0 + slot.prompt, sum.1 + slot.generated));
        let seconds = (end - begin).max(1) as f64;
        (sum.0 as f64 / seconds, sum.1 as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tenths: u64) -> Duration {
        Duration::from_millis(100 * tenths)
    }

    #[test]
    fn only_the_last_whole_seconds_count() {
        let mut rates = Rates::default();
        assert_eq!(rates.per_second(at(3)), (0.0, 0.0));
        for tenth in 0..100 {
            rates.add(at(tenth), 0, 2);
        }
        rates.add(at(95), 40, 0);
        assert_eq!(rates.per_second(at(95)), (0.0, 20.0), "the tenth second is under way");
        assert_eq!(rates.per_second(at(100)), (10.0, 20.0));
        assert_eq!(rates.per_second(at(120)), (10.0, 10.0));
        assert_eq!(rates.per_second(at(500)), (0.0, 0.0));
    }

    #[test]
    fn the_first_seconds_are_not_divided_by_more() {
        let mut rates = Rates::default();
        rates.add(at(5), 0, 8);
        assert_eq!(rates.per_second(at(10)), (0.0, 8.0));
        assert_eq!(rates.per_second(at(20)), (0.0, 4.0));
    }
}
