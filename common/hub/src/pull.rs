//! Fetches what a plan says, and lays it out.

use std::path::PathBuf;

use crate::client::Hub;
use crate::download::{Job, download};
use crate::error::Error;
use crate::files::make_directory;
use crate::lock::Lock;
use crate::observer::Observer;
use crate::plan::Plan;

/// Most connections at once: beyond these a hub refuses, and nothing gets faster.
pub const MAX_CONNECTIONS: usize = 64;

/// What was fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// The directory with the model's files.
    pub path: PathBuf,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that came over the network.
    pub fetched_bytes: u64,
}

/// Fetches what is missing over so many connections, checks it and lays it out as the Hub's own tools do. However it
/// ends, the next one goes on where it was.
///
/// # Errors
/// [`Error`]; [`Error::Stopped`] if the observer said so, [`Error::Held`] while somebody deletes of the model.
pub fn pull(
    hub: &Hub,
    plan: &Plan,
    connections: usize,
    observer: &dyn Observer,
) -> Result<Pulled, Error> {
    let Plan { wanted, commit, folder, .. } = plan;
    // Until all is laid out: what is there already is nobody's before this revision shows it.
    let _lock = Lock::shared(folder, &wanted.repo)?;
    make_directory(folder.path())?;
    let missing = plan.missing_bytes();
    let room = cake_platform::free_space(folder.path());
    let free = room.map_err(|cause| Error::io("read", folder.path(), cause))?.free_bytes;
    if missing > 0 && missing.saturating_add(cake_platform::DISK_RESERVE) > free {
        let (repo, path) = (wanted.repo.clone(), plan.cache().to_owned());
        return Err(Error::NoRoom { repo, path, needed: missing, free });
    }
    let files = plan.absent();
    let total = plan.bytes();
    let connections = connections.clamp(1, MAX_CONNECTIONS);
    let there = total - missing.min(total);
    let fetched_bytes = match files.is_empty() {
        true => 0,
        false => download(&Job {
            hub,
            wanted,
            commit,
            folder,
            files,
            there,
            total,
            connections,
            observer,
        })?,
    };
    // Not before all are there: half a model is found by nobody. Other programs do not know the lock.
    if let Some(file) = plan.absent().into_iter().next() {
        return Err(Error::Gone { file: file.name });
    }
    for file in &plan.files {
        folder.show(commit, file)?;
    }
    folder.set_ref(wanted.revision(), commit)?;
    Ok(Pulled { path: folder.snapshots().join(commit), bytes: total, fetched_bytes })
}
