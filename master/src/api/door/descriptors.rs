//! How many connections fit in the files that the system lets this program have open.

/// Most connections of clients at once: idle ones beyond that are closed, and none takes more than some tens of KiB.
const MOST: usize = 1024;
/// So many of eight files may be connections of clients. The others are for workers, for the list of those that are
/// shut out, for models: whoever fills this door with connections must not reach what keeps the cluster together.
const OF_EIGHT: u64 = 3;

/// Lets this program have as many files open as it may, and says how many that is where the system tells.
pub(in crate::api) fn raise() -> Option<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        /// What macOS gives where its hard limit names no number.
        const OPEN_MAX: u64 = 10_240;
        let limit = getrlimit(Resource::Nofile);
        for wanted in [limit.maximum, Some(OPEN_MAX.min(limit.maximum.unwrap_or(u64::MAX)))] {
            let raised = Rlimit { current: wanted, maximum: limit.maximum };
            if limit.current < wanted || wanted.is_none() {
                // Refused, it stays as it was, and the rest follows from that.
                setrlimit(Resource::Nofile, raised).ok();
            }
        }
        getrlimit(Resource::Nofile).current
    }
    #[cfg(not(unix))]
    None
}

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

    #[cfg(unix)]
    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        use rustix::process::{Resource, getrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let raised = raise();
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
        if cfg!(target_os = "linux") {
            assert_eq!(raised, maximum);
        }
    }
}
