//! What tests of this crate share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::job::Observer;
use crate::source::Source;

/// Where golden models are.
pub(crate) const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");

/// A golden model.
pub(crate) fn golden(name: &str) -> Source {
    Source::open(&format!("{GOLDEN}/{name}")).unwrap()
}

/// Who listens to nothing and never stops anybody.
pub(crate) struct Quiet;

impl Observer for Quiet {
    fn progress(&self, done: u64, total: u64) {
        assert!(done <= total);
    }
}

/// Who lets so many reports of progress pass, and then asks to stop.
pub(crate) struct StopsAfter(pub(crate) AtomicU64);

impl Observer for StopsAfter {
    fn progress(&self, _: u64, _: u64) {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok();
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}
