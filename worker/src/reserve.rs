//! What a device keeps back: below that its worker asks to be let go, its layers moved first, and comes back
//! once there is enough again.
use std::time::Duration;

use cake_checkpoint::units::format_bytes;
use cake_platform::{self as platform, Battery};
use tokio::sync::watch;
use tracing::warn;

/// How often the device is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// What must be there beyond what is kept back before the worker comes back, so that it does not come and go: of
/// the battery in percent, of memory in bytes.
const GAIN_PERCENT: u8 = 5;
const GAIN_BYTES: u64 = 64 << 20;

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
    /// Bytes of it that this process would give back: of mapped files they count as free already.
    used_bytes: u64,
}

impl Supply {
    fn now() -> Self {
        Self {
            battery: platform::battery(),
            free_bytes: platform::free_memory(),
            used_bytes: platform::process_memory().anonymous_bytes,
        }
    }
}

impl Reserve {
    /// What is short of it, in words. `left` is what there was when the worker left, if it is away: of what was
    /// short then it wants more before it comes back, and as much memory as it gave back since.
    fn lacks(&self, now: &Supply, left: Option<&Supply>) -> Option<String> {
        let battery = now.battery.filter(|now| match left {
            None => now.draining && now.percent < self.battery_percent,
            Some(_) => {
                let enough = self.battery_percent.saturating_add(GAIN_PERCENT);
                (now.draining || now.filling) && now.percent < enough && self.battery_percent > 0
            }
        });
        if let Some(Battery { percent, .. }) = battery {
            let kept = self.battery_percent;
            return Some(format!("its battery is at {percent} %, and it keeps back {kept} %"));
        }
        let was_short = left.filter(|left| left.free_bytes < self.free_bytes);
        let more = was_short.map_or(0, |left| {
            left.used_bytes.saturating_sub(now.used_bytes).saturating_add(GAIN_BYTES)
        });
        let short = self.free_bytes > 0 && now.free_bytes < self.free_bytes.saturating_add(more);
        short.then(|| {
            let (free, kept) = (format_bytes(now.free_bytes), format_bytes(self.free_bytes));
            format!("it has {free} of memory free, and keeps back {kept}")
        })
    }

    /// Whether there is anything to look at.
    fn is_nothing(&self) -> bool {
        self.free_bytes == 0 && (self.battery_percent == 0 || platform::battery().is_none())
    }

    /// Says for as long as it is polled in `leaving` why the worker should not work, if it should not.
    pub(crate) async fn watch(self, leaving: watch::Sender<Option<String>>) {
        let mut left = None;
        if self.is_nothing() {
            return;
        }
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

    const MIB: u64 = 1 << 20;
    const RESERVE: Reserve = Reserve { battery_percent: 15, free_bytes: 1000 * MIB };

    fn battery(percent: u8, draining: bool, filling: bool) -> Supply {
        let battery = Some(Battery { percent, draining, filling });
        Supply { battery, free_bytes: 1000 * MIB, used_bytes: 0 }
    }

    fn memory(free: u64, used: u64) -> Supply {
        Supply { battery: None, free_bytes: free * MIB, used_bytes: used * MIB }
    }

    #[test]
    fn a_battery_must_not_run_low() {
        let low = battery(14, true, false);
        let why = RESERVE.lacks(&low, None).expect("too low");
        assert!(why.contains("14 %") && why.contains("15 %"), "{why}");
        assert_eq!(RESERVE.lacks(&battery(15, true, false), None), None);
        assert_eq!(RESERVE.lacks(&battery(1, false, true), None), None, "it is charging");
        assert_eq!(RESERVE.lacks(&Supply { battery: None, ..low }, None), None, "it has none");
        let nothing = Reserve::default();
        assert_eq!(nothing.lacks(&battery(0, true, false), None), None);
        assert_eq!(nothing.lacks(&memory(0, 0), None), None);
    }

    #[test]
    fn a_battery_must_have_gained_before_its_device_comes_back() {
        let left = battery(14, true, false);
        for (now, comes) in [
            (battery(19, true, false), false),
            (battery(15, false, true), false), // A weak charger may let go again.
            (battery(20, false, true), true),
            (battery(20, true, false), true),
            (battery(14, false, false), true), // It neither gains nor loses: that is as it is to be.
        ] {
            assert_eq!(RESERVE.lacks(&now, Some(&left)).is_none(), comes, "{now:?}");
        }
    }

    #[test]
    fn memory_must_be_left() {
        let why = RESERVE.lacks(&memory(999, 0), None).expect("too little");
        assert!(why.contains("999 MiB") && why.contains("keeps back 1000 MiB"), "{why}");
        assert_eq!(RESERVE.lacks(&memory(1000, 0), None), None);
    }

    #[test]
    fn memory_that_was_given_back_must_be_there_again_and_some_more() {
        let left = memory(900, 500);
        for (now, comes) in [
            (memory(1463, 100), false), // It would use 400 of these again.
            (memory(1464, 100), true),
            (memory(1063, 500), false),
            (memory(1064, 500), true),
        ] {
            assert_eq!(RESERVE.lacks(&now, Some(&left)).is_none(), comes, "{now:?}");
        }
        // What was not short then is not asked for more of.
        assert_eq!(RESERVE.lacks(&memory(1000, 100), Some(&memory(1000, 500))), None);
    }
}
