//! What a worker that is held tells its master of its device: its battery, and how warm it is.
use std::time::Duration;

use cake_platform::{self as platform, Battery};
use cake_proto::wire;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(15);
/// Degrees that are not worth a word.
const LITTLE: u8 = 2;

/// The device as it was told last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    battery: Option<Battery>,
    celsius: Option<u8>,
}

impl Told {
    /// Waits until there is something else to tell: for ever where the device tells nothing. May be dropped at any time.
    pub(crate) async fn changed(&mut self) {
        loop {
            let look = || (platform::battery(), platform::temperature());
            let (battery, celsius) = tokio::task::spawn_blocking(look).await.unwrap_or_default();
            if self.takes(battery, celsius) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether this is something else.
    fn takes(&mut self, battery: Option<Battery>, celsius: Option<u8>) -> bool {
        let is_as_warm = match (self.celsius, celsius) {
            (Some(told), Some(now)) => told.abs_diff(now) < LITTLE,
            (told, now) => told == now,
        };
        if is_as_warm && battery == self.battery {
            return false;
        }
        *self = Self { battery, celsius };
        true
    }

    /// An event of the hold.
    pub(crate) fn event(&self, leaving: bool) -> wire::HoldEvent {
        let battery = self.battery.map(|Battery { percent, draining, .. }| wire::Battery {
            percent: percent.into(),
            draining,
        });
        let celsius = self.celsius.map(u32::from);
        wire::HoldEvent { leaving, battery, celsius, ..wire::HoldEvent::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_is_told_when_it_changes() {
        let mut told = Told::default();
        let at = |percent| Some(Battery { percent, draining: true, filling: false });
        assert!(!told.takes(None, None) && told.event(false).battery.is_none());
        assert!(told.takes(at(40), None) && !told.takes(at(40), None) && told.takes(at(39), None));
        let event = told.event(true);
        assert_eq!(event.battery, Some(wire::Battery { percent: 39, draining: true }));
        assert!(event.leaving && event.celsius.is_none());
        assert!(told.takes(None, None) && told.event(false).battery.is_none());
    }

    #[test]
    fn how_warm_a_device_is_is_told_when_it_is_worth_a_word() {
        let mut told = Told::default();
        assert!(told.takes(None, Some(40)) && told.event(false).celsius == Some(40));
        assert!(!told.takes(None, Some(41)) && !told.takes(None, Some(39)));
        assert!(told.takes(None, Some(42)) && told.event(false).celsius == Some(42));
        assert!(!told.takes(None, Some(41)), "it is held against what was told");
        assert!(told.takes(None, None) && told.event(false).celsius.is_none());
    }
}
