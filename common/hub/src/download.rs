//! All files of a model over several connections at once: each takes the next part that nobody has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::Folder;
use crate::client::Hub;
use crate::error::Error;
use crate::fetch::Fetch;
use crate::item::Item;
use crate::listing::RemoteFile;
use crate::names::Wanted;
use crate::observer::Observer;

/// How often it is looked whether somebody wants to stop.
const LOOK: Duration = Duration::from_millis(20);

/// What is fetched, and how.
pub(crate) struct Job<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) wanted: &'a Wanted,
    pub(crate) commit: &'a str,
    pub(crate) folder: &'a Folder,
    /// Files that are not there.
    pub(crate) files: Vec<RemoteFile>,
    /// Bytes of the model that are there, those that earlier runs left of these files included.
    pub(crate) there: u64,
    /// Bytes of the model.
    pub(crate) total: u64,
    pub(crate) connections: usize,
    pub(crate) observer: &'a dyn Observer,
}

struct Download<'a> {
    job: &'a Job<'a>,
    queue: Mutex<Queue>,
    arrived: AtomicU64,
    stopping: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// What nobody has taken yet.
struct Queue {
    /// By name, last first.
    files: Vec<RemoteFile>,
    /// The file whose parts are given out, and how many of them were.
    current: Option<(Arc<Item>, usize)>,
}

/// What one connection does next.
enum Task {
    Part(Arc<Item>, usize),
    /// All parts are there, from an earlier run.
    Check(Arc<Item>),
}

/// Fetches all of it. Returns how many bytes came.
pub(crate) fn download(job: &Job<'_>) -> Result<u64, Error> {
    let files = job.files.iter().rev().cloned().collect();
    let download = Download {
        job,
        queue: Mutex::new(Queue { files, current: None }),
        arrived: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    job.observer.progress(job.there, job.total);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..job.connections.max(1)).map(|_| scope.spawn(|| download.work())).collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(LOOK);
            if download.stop() {
                job.hub.shut_down(); // Whoever waits for bytes need not.
            }
        }
    });
    let arrived = download.arrived.load(Ordering::Acquire);
    match locked(&download.failure).take() {
        Some(error) => Err(error),
        None if job.observer.is_cancelled() => {
            Err(Error::Stopped { done: job.there + arrived, total: job.total })
        }
        None => Ok(arrived),
    }
}

impl Download<'_> {
    /// One connection's work.
    fn work(&self) {
        let stop = || self.stop();
        let arrived = |bytes| self.count(bytes);
        let Job { hub, wanted, .. } = self.job;
        let fetch = Fetch { hub, wanted, stop: &stop, arrived: &arrived };
        while !self.stop() {
            let done = match self.next() {
                Ok(Some(task)) => self.run(&fetch, task),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                locked(&self.failure).get_or_insert(error);
                self.stopping.store(true, Ordering::Release);
            }
        }
    }

    fn stop(&self) -> bool {
        self.stopping.load(Ordering::Acquire) || self.job.observer.is_cancelled()
    }

    fn count(&self, bytes: u64) {
        let arrived = self.arrived.fetch_add(bytes, Ordering::AcqRel) + bytes;
        self.job.observer.progress(self.job.there + arrived, self.job.total);
    }

    fn next(&self) -> Result<Option<Task>, Error> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some((item, given)) = &mut queue.current {
                if let Some(&part) = item.todo.get(*given) {
                    *given += 1;
                    return Ok(Some(Task::Part(item.clone(), part)));
                }
                queue.current = None;
            }
            let Some(remote) = queue.files.pop() else { return Ok(None) };
            let Job { hub, wanted, commit, folder, .. } = self.job;
            let url = hub.file_url(wanted, commit, &remote.name);
            let item = Arc::new(Item::open(folder, remote, url)?);
            if item.todo.is_empty() {
                return Ok(Some(Task::Check(item)));
            }
            queue.current = Some((item, 0));
        }
    }

    fn run(&self, fetch: &Fetch<'_>, task: Task) -> Result<(), Error> {
        let stop = || self.stop();
        match task {
            Task::Check(item) => self.finish(&item),
            Task::Part(item, part) => {
                fetch.part(&item, part)?;
                if !item.partial.is_complete(part) {
                    return Ok(()); // It was to stop.
                }
                match item.part_done() {
                    true => self.finish(&item),
                    false => item.hash_on(&stop),
                }
            }
        }
    }

    fn finish(&self, item: &Item) -> Result<(), Error> {
        item.finish(self.job.folder, &|| self.stop())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
