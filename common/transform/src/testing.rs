//! What tests of this crate share.

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
