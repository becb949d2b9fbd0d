//! How many files a process may have open.

/// Lets this process have as many files open as it may, and says how many that is where the system tells.
pub fn raise_open_files() -> Option<u64> {
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

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        use rustix::process::{Resource, getrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let raised = super::raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
        if cfg!(target_os = "linux") {
            assert_eq!(raised, maximum);
        }
    }
}
