//! What a worker that is held said last of itself.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cake_proto::wire;
use serde::Serialize;

/// A device's battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Battery {
    /// Of what it holds when full, 0 to 100.
    pub percent: u8,
    /// Whether what is left gets less.
    pub draining: bool,
}

impl Battery {
    /// As it was said, if that can be.
    fn of(said: &wire::Battery) -> Option<Self> {
        let percent = u8::try_from(said.percent).ok().filter(|percent| *percent <= 100)?;
        Some(Self { percent, draining: said.draining })
    }
}

/// The last word.
#[derive(Debug, Default)]
pub(super) struct Word {
    leaving: AtomicBool,
    battery: Mutex<Option<Battery>>,
}

impl Word {
    /// It says all of this anew.
    pub(super) fn hear(&self, event: &wire::HoldEvent) {
        self.leaving.store(event.leaving, Ordering::Relaxed);
        let battery = event.battery.as_ref().and_then(Battery::of);
        *self.battery.lock().unwrap_or_else(PoisonError::into_inner) = battery;
    }

    /// Whether it asks to be let go.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Its battery, if it has one and tells.
    pub(super) fn battery(&self) -> Option<Battery> {
        *self.battery.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_says_everything_anew_and_nonsense_is_nothing() {
        let word = Word::default();
        let said = |percent, draining| Some(wire::Battery { percent, draining });
        let hear = |leaving, battery| {
            word.hear(&wire::HoldEvent { leaving, battery, ..wire::HoldEvent::default() });
            (word.is_leaving(), word.battery())
        };
        let expected = Some(Battery { percent: 40, draining: true });
        assert_eq!(hear(false, said(40, true)), (false, expected));
        assert_eq!(hear(true, said(101, true)), (true, None));
        assert_eq!(hear(true, said(u32::MAX, false)), (true, None));
        assert_eq!(hear(false, None), (false, None));
    }
}
