//! What is measured on the machine because no choice is the faster one on every processor: what GEMVs prefetch. It
//! changes no result.
//!
//! It is measured once, with weights that are there anyway, before they are first used; who runs this process may keep
//! the answer for the next one.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cake_checkpoint::{Encoding, MappedTensor};

use super::measure::{read, sample};
use crate::device::cpu::isa::prefetch::Prefetch;
use crate::device::cpu::pool::processors::default_threads;
use crate::options::Numerics;

/// Each candidate is timed so often, in turn, and the best time counts: others use the memory, too.
const ROUNDS: usize = 3;
/// The part of its time that a candidate must save to be chosen over one before it.
const GAIN: f64 = 0.02;
/// What may be chosen; the first one unless another is faster.
const CANDIDATES: [Prefetch; 3] =
    [Prefetch::DEFAULT, Prefetch { far: true, near: false }, Prefetch::NONE];

/// What was found to be fastest on a machine. As text: what is prefetched, such as `far+near` or `none`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning(Prefetch);

/// The answer, once there is one.
static FOUND: Mutex<Option<Tuning>> = Mutex::new(None);
/// Held by who measures it, which takes a while.
static MEASURING: Mutex<()> = Mutex::new(());

/// What was measured here, or [told](set_tuning); `None` before.
pub fn tuning() -> Option<Tuning> {
    *FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes with what was measured on such a machine before, and measures nothing.
pub fn set_tuning(tuning: Tuning) {
    *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuning);
    tuning.0.choose();
}

/// Measures with those of `tensors` that are large matrices of numbers how `threads` threads (0: as many as by default)
/// read them fastest, if that is not known and there are enough of them.
pub(crate) fn tune<'a>(tensors: impl Iterator<Item = &'a MappedTensor>, threads: usize) {
    let _measuring = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    if tuning().is_some() {
        return;
    }
    // Scales of packed matrices are numbers, too, and nobody multiplies them.
    let numbers = |it: &&MappedTensor| matches!(it.encoding(), Some(Encoding::Float(_)));
    let Some(sample) = sample(tensors.filter(numbers)) else { return };
    let threads = if threads == 0 { default_threads() } else { threads };
    let mut times = [Duration::MAX; CANDIDATES.len()];
    for _ in 0..ROUNDS {
        for (candidate, time) in CANDIDATES.iter().zip(&mut times) {
            candidate.choose();
            // The exact GEMV with plain numbers is one kernel on every processor, and that asks what to prefetch.
            *time = read(&sample, threads, Numerics::Exact).min(*time);
        }
    }
    let tuning = Tuning(CANDIDATES[fastest(&times)]);
    set_tuning(tuning);
    tracing::info!(prefetch = %tuning, ?times, "measured what helps to read weights");
}

/// Which of these times is shorter, by enough, than those before it.
fn fastest(times: &[Duration]) -> usize {
    let shorter = |best: usize, next: usize| {
        let better = times[next].as_secs_f64() < times[best].as_secs_f64() * (1.0 - GAIN);
        if better { next } else { best }
    };
    (0..times.len()).reduce(shorter).unwrap_or(0)
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match (self.0.far, self.0.near) {
            (true, true) => "far+near",
            (true, false) => "far",
            (false, true) => "near",
            (false, false) => "none",
        })
    }
}

impl FromStr for Tuning {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let found = CANDIDATES.into_iter().map(Tuning).find(|tuning| tuning.to_string() == text);
        found.ok_or_else(|| Unknown { found: text.to_owned() })
    }
}

/// A text that is no [`Tuning`].
#[derive(Debug, thiserror::Error)]
#[error("{found:?} is nothing that can be prefetched; expected one of far+near, far, none")]
pub struct Unknown {
    /// As given.
    pub found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_is_chosen_only_if_it_is_faster_by_more_than_chance() {
        let fastest = |times: [u64; 3]| fastest(&times.map(Duration::from_millis));
        assert_eq!(fastest([100, 99, 99]), 0);
        assert_eq!(fastest([100, 97, 96]), 1);
        assert_eq!(fastest([100, 97, 80]), 2);
        assert_eq!(fastest([90, 97, 89]), 0);
    }

    #[test]
    fn what_was_found_survives_as_text() {
        for tuning in CANDIDATES.map(Tuning) {
            assert_eq!(tuning.to_string().parse::<Tuning>().ok(), Some(tuning));
        }
        let refusal = "sometimes".parse::<Tuning>().expect_err("no such").to_string();
        assert!(refusal.contains("sometimes") && refusal.contains("far+near"), "{refusal}");
    }

    #[test]
    fn little_is_not_measured() {
        let tensor =
            MappedTensor::from_vec(vec![0; 4096], cake_checkpoint::Dtype::BF16, vec![2, 1024]);
        tune([&tensor].into_iter(), 1);
        assert_eq!(tuning(), None);
    }
}
