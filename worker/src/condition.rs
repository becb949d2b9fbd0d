//! What a worker that is held tells its master of its battery.
use std::time::Duration;

use cake_platform::{self as platform, Battery};
use cake_proto::wire;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(15);

/// The battery as it was told last.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<Battery>);

impl Told {
    /// Waits until there is something else to tell: for ever where there is no battery. May be dropped at any time.
    pub(crate) async fn changed(&mut self) {
        loop {
            let now = tokio::task::spawn_blocking(platform::battery).await.ok().flatten();
            if self.takes(now) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether this is something else.
    fn takes(&mut self, now: Option<Battery>) -> bool {
        let is_other = now != self.0;
        self.0 = now;
        is_other
    }

    /// For an event of the hold.
    pub(crate) fn wire(&self) -> Option<wire::Battery> {
        let Battery { percent, draining, .. } = self.0?;
        Some(wire::Battery { percent: percent.into(), draining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_is_told_when_it_changes() {
        let mut told = Told::default();
        let at = |percent| Some(Battery { percent, draining: true, filling: false });
        assert!(!told.takes(None) && told.wire().is_none());
        assert!(told.takes(at(40)) && !told.takes(at(40)) && told.takes(at(39)));
        assert_eq!(told.wire(), Some(wire::Battery { percent: 39, draining: true }));
        assert!(told.takes(None) && told.wire().is_none());
    }
}
