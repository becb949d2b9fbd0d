//! What is known of how long a device takes for something that each generated token needs: as probed before it is
//! used, and as seen while a pipeline runs.
//!
//! Whatever else a device does makes it slower, never faster. So of two sources the faster one is believed, within
//! bounds, and a slower one only by halves, for a while, and by not too much.

use serde::{Deserialize, Serialize};

/// How many times as fast as probed without noise something may run: what is faster was not the same thing.
const FASTER: f64 = 4.0;
/// How many times as slow it is believed to run: a device that was slow for a while is not left out for ever.
const SLOWER: f64 = 2.0;
/// How long it counts that something ran slower than it was probed without noise (seconds).
const SLOW_SECONDS: u64 = 3600;

/// Seconds that something takes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// As probed.
    pub probed: f64,
    /// Whether nothing else ran there meanwhile.
    pub quiet: bool,
    /// As it ran.
    pub seen: Option<Seen>,
}

/// Seconds that something took while it was used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// So many.
    pub seconds: f64,
    /// When that was, in seconds since 1970.
    pub at_seconds: u64,
}

impl Pace {
    /// As probed; nothing was seen yet.
    pub fn probed(seconds: f64, quiet: bool) -> Self {
        Self { probed: seconds, quiet, seen: None }
    }

    /// What is known after another probe, which is none the worse for noise.
    pub fn probed_again(self, seconds: f64, quiet: bool) -> Self {
        match quiet {
            true => Self { probed: seconds, quiet, ..self },
            false => Self { probed: self.probed.min(seconds), ..self },
        }
    }

    /// What is known after it ran for some while, in the median of which it took so many seconds.
    pub fn ran(self, seconds: f64, now: u64) -> Self {
        if !(seconds.is_finite() && seconds > 0.0) {
            return self;
        }
        let before = self.seen.map_or(seconds, |seen| seen.seconds);
        let seconds = if seconds <= before { seconds } else { (before * seconds).sqrt() };
        Self { seen: Some(Seen { seconds, at_seconds: now }), ..self }
    }

    /// Seconds that it will take.
    pub fn seconds(&self, now: u64) -> f64 {
        let Some(seen) = self.seen else { return self.probed };
        if !self.quiet {
            return seen.seconds; // It is what really happened.
        }
        if seen.seconds <= self.probed {
            return seen.seconds.max(self.probed / FASTER);
        }
        if self.seen_lately(now) { seen.seconds.min(self.probed * SLOWER) } else { self.probed }
    }

    /// Whether what is known needs no other probe.
    pub fn is_certain(&self, now: u64) -> bool {
        self.quiet || self.seen_lately(now)
    }

    fn seen_lately(&self, now: u64) -> bool {
        self.seen.is_some_and(|seen| now.saturating_sub(seen.at_seconds) <= SLOW_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected, "{found}, expected {expected}");
    }

    #[test]
    fn a_probe_beside_other_work_does_not_outlast_what_really_ran() {
        // 18.8 tokens per second were predicted, and there were 86.
        let noisy = Pace::probed(1.0 / 18.8, false);
        assert!(!noisy.is_certain(NOW));
        let ran = noisy.ran(1.0 / 86.0, NOW);
        near(ran.seconds(NOW), 1.0 / 86.0);
        assert!(ran.is_certain(NOW) && !ran.is_certain(NOW + SLOW_SECONDS + 1));
    }

    #[test]
    fn a_noisy_probe_makes_nothing_worse_and_a_quiet_one_counts() {
        let quiet = Pace::probed(0.010, true);
        assert_eq!(quiet.probed_again(0.050, false), quiet);
        let noisy = Pace::probed(0.050, false);
        assert_eq!(noisy.probed_again(0.030, false), Pace::probed(0.030, false));
        assert_eq!(noisy.probed_again(0.080, false), noisy);
        assert_eq!(noisy.probed_again(0.012, true), Pace::probed(0.012, true));
        assert_eq!(quiet.probed_again(0.012, true), Pace::probed(0.012, true), "it changed");
    }

    #[test]
    fn slower_is_believed_by_halves_within_bounds_and_for_a_while() {
        let quiet = Pace::probed(0.010, true);
        near(quiet.ran(0.012, NOW).seconds(NOW), 0.012);
        let busy = quiet.ran(0.010, NOW).ran(0.040, NOW);
        near(busy.seconds(NOW), 0.020);
        near(busy.ran(1.0, NOW).seconds(NOW), 0.020);
        near(busy.seconds(NOW + SLOW_SECONDS + 1), 0.010);
        near(busy.ran(0.011, NOW).seconds(NOW), 0.011);
    }

    #[test]
    fn faster_is_believed_at_once_within_bounds() {
        let quiet = Pace::probed(0.010, true);
        near(quiet.ran(0.009, NOW).seconds(NOW + 10 * SLOW_SECONDS), 0.009);
        near(quiet.ran(1e-6, NOW).seconds(NOW), 0.0025);
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(quiet.ran(nothing, NOW), quiet);
        }
    }

    #[test]
    fn whatever_noise_there_is_the_pace_stays_within_bounds_of_the_truth() {
        // The truth is 10 ms; everything measured is that, or slower by up to twenty times.
        let mut state = 7u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slow = 1.0 + ((state >> 40) & 0xff) as f64 / 13.0;
            if state >> 62 == 0 { 0.010 * slow } else { 0.010 }
        };
        let mut pace = Pace::probed(noise(), false);
        for round in 0..1000 {
            let seconds = noise();
            let slow = seconds > 0.010;
            pace = if round % 3 == 0 {
                pace.probed_again(seconds, !slow)
            } else {
                pace.ran(seconds, NOW)
            };
            assert!(pace.seconds(NOW) >= 0.010 - 1e-12, "round {round}: {pace:?}");
            if round > 10 {
                assert!(pace.seconds(NOW) <= 0.020 + 1e-12, "round {round}: {pace:?}");
            }
        }
    }
}
