//! The largest magnitudes of matrices of which all numbers decide about each: found unit by unit, by all threads.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::units::{Pass, Units};
use crate::error::Error;

/// How soon somebody who waits sees that the others stopped.
const TURN: Duration = Duration::from_millis(50);

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Largest {
    /// By piece.
    found: Mutex<HashMap<usize, Found>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Found {
    /// Units that were not looked at.
    left: u32,
    /// The largest magnitude in the others.
    most: f32,
}

impl Largest {
    /// Nothing but what an earlier run wrote down.
    pub(super) fn new(units: &Units, done: &BTreeMap<u32, String>) -> Largest {
        let found = units.looks().map(|(piece, left)| (piece, Found { left, most: 0.0 }));
        let largest = Largest { found: Mutex::new(found.collect()), changed: Condvar::new() };
        for (&unit, text) in done {
            let unit = units.get(unit);
            if let (Pass::Look, Some(most)) = (unit.pass, from_text(text)) {
                largest.add(unit.piece, most);
            }
        }
        largest
    }

    /// One more unit of that piece was looked at.
    pub(super) fn add(&self, piece: usize, most: f32) {
        if let Some(found) = self.found().get_mut(&piece) {
            found.left = found.left.saturating_sub(1);
            found.most = found.most.max(most);
        }
        self.changed.notify_all();
    }

    /// The largest magnitude of that piece, once all of it was looked at, which others do meanwhile; 0 if nobody asks for it.
    ///
    /// # Errors
    /// Those of `check`, which says whether to wait on.
    pub(super) fn of(
        &self,
        piece: usize,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<f32, Error> {
        let mut all = self.found();
        loop {
            match all.get(&piece) {
                Some(found) if found.left > 0 => check()?,
                found => return Ok(found.map_or(0.0, |found| found.most)),
            }
            let waited = self.changed.wait_timeout(all, TURN);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn found(&self) -> MutexGuard<'_, HashMap<usize, Found>> {
        // A panic while it is held leaves what is said.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the journal has of a unit that was looked at.
pub(super) fn to_text(most: f32) -> String {
    format!("{:08x}", most.to_bits())
}

/// What [`to_text`] wrote.
pub(super) fn from_text(text: &str) -> Option<f32> {
    u32::from_str_radix(text, 16).ok().map(f32::from_bits).filter(|most| *most >= 0.0)
}
