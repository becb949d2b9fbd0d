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

/// How a device is, as far as it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Its battery, if it has one.
    pub battery: Option<Battery>,
    /// How warm its processor is, in °C, 1 to 150.
    pub celsius: Option<u8>,
}

impl Condition {
    /// As it was said, as far as that can be.
    fn of(said: &wire::HoldEvent) -> Self {
        let celsius = said.celsius.and_then(|celsius| u8::try_from(celsius).ok());
        Self {
            battery: said.battery.as_ref().and_then(Battery::of),
            celsius: celsius.filter(|celsius| (1..=150).contains(celsius)),
        }
    }
}

/// The last word.
#[derive(Debug, Default)]
pub(super) struct Word {
    leaving: AtomicBool,
    condition: Mutex<Condition>,
}

impl Word {
    /// It says all of this anew.
    pub(super) fn hear(&self, event: &wire::HoldEvent) {
        self.leaving.store(event.leaving, Ordering::Relaxed);
        let mut condition = self.condition.lock().unwrap_or_else(PoisonError::into_inner);
        *condition = Condition::of(event);
    }

    /// Whether it asks to be let go.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// How it is.
    pub(super) fn condition(&self) -> Condition {
        *self.condition.lock().unwrap_or_else(PoisonError::into_inner)
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
            (word.is_leaving(), word.condition().battery)
        };
        let expected = Some(Battery { percent: 40, draining: true });
        assert_eq!(hear(false, said(40, true)), (false, expected));
        assert_eq!(hear(true, said(101, true)), (true, None));
        assert_eq!(hear(true, said(u32::MAX, false)), (true, None));
        assert_eq!(hear(false, None), (false, None));
        let warm = |celsius| {
            word.hear(&wire::HoldEvent { celsius, ..wire::HoldEvent::default() });
            word.condition().celsius
        };
        assert_eq!([Some(61), None, Some(150)].map(warm), [Some(61), None, Some(150)]);
        assert_eq!([Some(0), Some(151), Some(256 + 61), Some(u32::MAX)].map(warm), [None; 4]);
    }
}
