//! Turns beside which the memory's rate was read, taken again where something else had the machine.
use anyhow::Result;

use super::bandwidth::read_bandwidth;

/// How far the memory's rate may move from before a turn to after it, as a part of the larger one.
const CALM: f64 = 0.10;
/// Turns at most: a machine that is never calm has figures, too, and says so.
const TRIES: usize = 3;

/// A turn, and the bytes per second that so many threads read from memory right before and after it, their mean.
///
/// # Errors
/// Those of the turn, and if memory cannot be had.
pub(super) fn undisturbed<T>(
    threads: usize,
    mut turn: impl FnMut() -> Result<T>,
) -> Result<(f64, T)> {
    let mut before = read_bandwidth(threads, true)?;
    for left in (0..TRIES).rev() {
        let outcome = turn()?;
        let after = read_bandwidth(threads, true)?;
        if is_calm(before, after) || left == 0 {
            return Ok((f64::midpoint(before, after), outcome));
        }
        eprintln!(
            "memory gave {:.1} GB/s before this turn and {:.1} after it: once more",
            before / 1e9,
            after / 1e9,
        );
        before = after;
    }
    unreachable!("the last try returns")
}

fn is_calm(before: f64, after: f64) -> bool {
    (before - after).abs() <= CALM * before.max(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_faster_rate_is_calm() {
        assert!(is_calm(10.0, 9.0) && is_calm(9.0, 10.0) && is_calm(5.0, 5.0));
        assert!(!is_calm(10.0, 8.9) && !is_calm(8.9, 10.0));
    }
}
