//! Who is told how far a download is.

/// Who is told how far a download is, from any of its threads.
pub trait Observer: Sync {
    /// So many bytes are there, of so many in all.
    fn progress(&self, done: u64, total: u64);

    /// Whether to stop; asked often.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody.
impl Observer for () {
    fn progress(&self, _: u64, _: u64) {}
}
