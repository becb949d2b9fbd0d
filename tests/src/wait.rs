//! Waiting for a condition, with a deadline.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a condition is looked at, where nobody says.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within `limit`; the message says `what` was waited for.
#[track_caller]
pub fn until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    until_at(what, limit, INTERVAL, condition);
}

/// The same of a condition that is looked at so often.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_at(
    what: &str,
    limit: Duration,
    interval: Duration,
    mut condition: impl FnMut() -> bool,
) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}, in vain");
        std::thread::sleep(interval);
    }
}

/// What the machine's clock says (whole seconds since 1970).
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Waits until the machine's clock is past a time (seconds since 1970).
///
/// # Panics
/// If that time is more than `limit` away.
#[track_caller]
pub fn until_past(what: &str, limit: Duration, unix: u64) {
    until(what, limit, || unix_seconds() > unix);
}
