//! Which step there is to look for.
use tokio::time::Instant;

/// What there is to look for.
pub(super) enum Missed {
    /// Nothing is on its way.
    Nothing,
    /// Nothing before this time.
    Not(Instant),
    /// This step, with so many rows, which is awaited since then.
    Step { number: u64, rows: usize, since: Instant },
    /// A step that a later one overtook.
    Overtaken,
    /// The pipeline is over.
    Over,
}
