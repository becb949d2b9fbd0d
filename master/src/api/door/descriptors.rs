//! How many connections fit in the files that the system lets this program have open.

/// Most connections of clients at once: idle ones beyond that are closed, and none takes more than some tens of KiB.
const MOST: usize = 1024;
/// So many of eight files may be connections of clients. The others are for workers, for the list of those that are
/// shut out, for models: whoever fills this door with connections must not reach what keeps the cluster together.
const OF_EIGHT: u64 = 3;

/// How many connections of clients there may be, of a program that may have so many files open.
pub(in crate::api) fn connections(files: Option<u64>) -> usize {
    let Some(files) = files else { return MOST };
    let share = files.saturating_mul(OF_EIGHT) / 8;
    usize::try_from(share).unwrap_or(MOST).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!(connections(None), MOST);
        assert_eq!(connections(Some(u64::MAX)), MOST);
        assert_eq!(connections(Some(1024)), 384);
        assert_eq!(connections(Some(64)), 24);
        assert_eq!(connections(Some(0)), 1);
    }
}
