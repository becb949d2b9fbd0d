//! Which worker a person means.
use crate::entry::{MOST_NAME_BYTES, WorkerEntry};
use crate::peer::MOST_REVOKED;

/// Why nobody is meant by this name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// No such worker.
    #[error("no worker is called {name:?}; there are: {}", .known.join(", "))]
    Unknown {
        /// As given.
        name: String,
        /// Those that joined.
        known: Vec<String>,
    },
    /// Nor any other.
    #[error("no worker is called {name:?}; {}", match .joined {
        0 => "nobody has joined",
        _ => "all that joined are shut out already",
    })]
    Nobody {
        /// As given.
        name: String,
        /// How many ever joined.
        joined: usize,
    },
    /// There is no room for one more on the list that all workers get.
    #[error(
        "{MOST_REVOKED} workers are shut out already, and no list may be longer: make another authority with \
         `cake-master init` in another directory, and let those join it that are to stay"
    )]
    TooMany,
    /// A name that no worker can have.
    #[error(
        "{name:?} is no name for a worker, expected 1 to {MOST_NAME_BYTES} letters, digits, `-`, `_` and `.`"
    )]
    Unfit {
        /// As given.
        name: String,
    },
    /// A name that is another member's.
    #[error("another worker is called {name:?} already")]
    Taken {
        /// As given.
        name: String,
    },
    /// More than one.
    #[error("{} workers are called {name:?}: say which by its id, {}", .ids.len(), .ids.join(" or "))]
    Several {
        /// As given.
        name: String,
        /// Theirs.
        ids: Vec<String>,
    },
    /// The ids of more than one begin so.
    #[error("the ids of {} workers begin with {prefix:?}: {}", .meant.len(), .meant.join(", "))]
    Prefix {
        /// As given.
        prefix: String,
        /// Their names and ids.
        meant: Vec<String>,
    },
}

/// Fewest digits of an id that stand for it: fewer are rather a name mistyped.
const LEAST_PREFIX: usize = 4;

/// The place among `workers` of the one that is meant by its id, its name, or the beginning of its id.
pub(crate) fn meant(workers: &[&WorkerEntry], name: &str) -> Result<usize, NameError> {
    let places = |is_meant: &dyn Fn(&WorkerEntry) -> bool| -> Vec<usize> {
        (0..workers.len()).filter(|at| is_meant(workers[*at])).collect()
    };
    // A name may look like an id, but only one has the id.
    if let [place] = places(&|worker| worker.worker_id == name)[..] {
        return Ok(place);
    }
    let name = name.to_owned();
    match places(&|worker| worker.name == name)[..] {
        [place] => return Ok(place),
        [] => {}
        ref several => {
            let ids = several.iter().map(|place| workers[*place].worker_id.clone()).collect();
            return Err(NameError::Several { name, ids });
        }
    }
    let is_prefix = name.len() >= LEAST_PREFIX;
    match places(&|worker| is_prefix && worker.worker_id.starts_with(&name))[..] {
        [place] => Ok(place),
        [] => {
            let known = workers.iter().map(|worker| worker.name.clone()).collect();
            Err(NameError::Unknown { name, known })
        }
        ref several => {
            let entry = |place: &usize| {
                let WorkerEntry { name, worker_id, .. } = workers[*place];
                format!("{name} ({worker_id})")
            };
            let meant = several.iter().map(entry).collect();
            Err(NameError::Prefix { prefix: name, meant })
        }
    }
}
