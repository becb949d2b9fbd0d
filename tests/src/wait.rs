//! Waiting for a condition, with a deadline.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The shortest pause between two looks at a condition, where nobody says.
const INTERVAL: Duration = Duration::from_millis(2);
/// The longest one, where looking takes long: what holds for a moment is to be seen.
const LONGEST: Duration = Duration::from_millis(25);
/// A pause is as many times as long as the look before it: whoever is asked has time for its work.
const PATIENCE: u32 = 4;

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not hold within `limit`; the message says `what` was waited for.
#[track_caller]
pub fn until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    let pause = |look: Duration| (look * PATIENCE).clamp(INTERVAL, LONGEST);
    wait(what, limit, pause, condition);
}

/// The same of a condition that is looked at so often.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_at(what: &str, limit: Duration, interval: Duration, condition: impl FnMut() -> bool) {
    wait(what, limit, |_| interval, condition);
}

#[track_caller]
fn wait(
    what: &str,
    limit: Duration,
    pause: impl Fn(Duration) -> Duration,
    mut condition: impl FnMut() -> bool,
) {
    let started = Instant::now();
    loop {
        let looked = Instant::now();
        if condition() {
            return;
        }
        let look = looked.elapsed();
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}, in vain");
        std::thread::sleep(pause(look));
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
