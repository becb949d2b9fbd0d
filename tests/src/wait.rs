//! Waiting for a condition, with a deadline.
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within `limit`; the message says `what` was waited for.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}, in vain");
        std::thread::sleep(INTERVAL);
    }
}
