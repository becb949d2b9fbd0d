//! What a device keeps back: below that its worker asks to be let go, its layers moved first, and comes back
//! once there is enough again.
use std::time::Duration;

use cake_checkpoint::units::format_bytes;
use tokio::sync::watch;
use tracing::warn;

use crate::platform::{self, Battery};

/// How often the device is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// What a battery must have gained before the worker comes back, so that it does not come and go.
const GAIN_PERCENT: u8 = 5;

/// What is kept back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Of the battery, while it is discharging.
    pub battery_percent: u8,
    /// Bytes of memory left free.
    pub free_bytes: u64,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
struct Supply {
    battery: Option<Battery>,
    free_bytes: u64,
    /// Bytes that this process uses.
    used_bytes: u64,
}

impl Supply {
    fn now() -> Self {
        Self {
            battery: platform::battery(),
            free_bytes: platform::free_memory(),
            used_bytes: platform::process_memory().resident_bytes,
        }
    }
}

impl Reserve {
    /// What is short of it, in words. `left` is what there was when the worker left, if it is away: it comes
    /// back only when there is more, by what it used then and gave back since.
    fn lacks(&self, now: &Supply, left: Option<&Supply>) -> Option<String> {
        let percent = self.battery_percent + if left.is_some() { GAIN_PERCENT } else { 0 };
        let battery =
            now.battery.filter(|battery| battery.discharging && battery.percent < percent);
        if let Some(Battery { percent, .. }) = battery {
            return Some(format!(
                "its battery is at {percent} %, and it keeps back {} %",
                self.battery_percent
            ));
        }
        let given_back = left.map_or(0, |left| left.used_bytes.saturating_sub(now.used_bytes));
        (now.free_bytes < self.free_bytes.saturating_add(given_back) && self.free_bytes > 0).then(
            || {
                let (free, kept) = (format_bytes(now.free_bytes), format_bytes(self.free_bytes));
                format!("it has {free} of memory free, and keeps back {kept}")
            },
        )
    }

    /// Says for as long as it is polled in `leaving` why the worker should not work, if it should not.
    pub(crate) async fn watch(self, leaving: watch::Sender<Option<String>>) {
        let mut left = None;
        loop {
            let Ok(now) = tokio::task::spawn_blocking(Supply::now).await else { return };
            let why = self.lacks(&now, left.as_ref());
            match (&why, left) {
                (Some(why), None) => {
                    warn!("leaving: {why}");
                    left = Some(now);
                }
                (None, Some(_)) => {
                    warn!("there is enough again");
                    left = None;
                }
                _ => {}
            }
            leaving.send_if_modified(|known| {
                let changed = known.is_some() != why.is_some();
                *known = why;
                changed
            });
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: Reserve = Reserve { battery_percent: 15, free_bytes: 1000 };

    fn supply(percent: u8, discharging: bool, free_bytes: u64, used_bytes: u64) -> Supply {
        Supply { battery: Some(Battery { percent, discharging }), free_bytes, used_bytes }
    }

    #[test]
    fn a_battery_must_not_run_low() {
        let low = supply(14, true, 1000, 0);
        let why = RESERVE.lacks(&low, None).expect("too low");
        assert!(why.contains("14 %") && why.contains("15 %"), "{why}");
        assert_eq!(RESERVE.lacks(&supply(15, true, 1000, 0), None), None);
        assert_eq!(RESERVE.lacks(&supply(1, false, 1000, 0), None), None, "it is charging");
        assert_eq!(RESERVE.lacks(&Supply { battery: None, ..low }, None), None, "it has none");
        assert_eq!(Reserve::default().lacks(&supply(0, true, 0, 0), None), None);
    }

    #[test]
    fn memory_must_be_left() {
        let why = RESERVE.lacks(&supply(50, true, 999, 0), None).expect("too little");
        assert!(why.contains("999 bytes") || why.contains("999 B"), "{why}");
        assert_eq!(RESERVE.lacks(&supply(50, true, 1000, 0), None), None);
    }

    #[test]
    fn whoever_left_comes_back_when_it_would_not_have_to_leave_again() {
        let left = supply(14, true, 900, 500);
        for (now, comes) in [
            (supply(19, true, 1400, 100), false),
            (supply(20, true, 1400, 100), true),
            (supply(14, false, 1400, 100), true),
            (supply(20, true, 1399, 100), false), // It would use 400 of these again.
            (supply(20, true, 1399, 101), true),
        ] {
            assert_eq!(RESERVE.lacks(&now, Some(&left)).is_none(), comes, "{now:?}");
        }
    }
}
