//! What a running process of this master tells those beside it, such as where its door is: a file that counts for as
//! long as the process lives, since it holds a lock that the system lets go of however the process ends.
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cake_identity::random_token;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Directory of the signs in the one of whoever puts them up.
const DIRECTORY: &str = "running";
/// More than this is no sign of ours (bytes).
const MOST_BYTES: u64 = 64 << 10;
/// More than these are not read: no person runs so many at once.
const MOST_SIGNS: usize = 256;
/// One that nobody holds is removed once it is so old: before, its process may be about to lock it.
const STALE: Duration = Duration::from_secs(60);

/// Where members join, and those that the master cannot connect to open connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorSign {
    /// Where the door listens (HOST:PORT).
    pub address: String,
}

/// A service that answers requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSign {
    /// Where (`http://HOST:PORT`).
    pub url: String,
    /// What its workers say of who holds them.
    pub master: String,
}

/// A kind of sign.
pub trait Kind: Serialize + DeserializeOwned {
    /// What its files' names begin with.
    const NAME: &'static str;
}

impl Kind for DoorSign {
    const NAME: &'static str = "door";
}

impl Kind for ServiceSign {
    const NAME: &'static str = "service";
}

/// A sign that is up until this is dropped.
#[derive(Debug)]
pub struct Sign {
    _lock: File,
    paths: [PathBuf; 2],
}

impl Sign {
    /// Puts it up in the master's directory `home`. Waits for a disk.
    ///
    /// # Errors
    /// If it cannot be written or locked.
    pub fn put<T: Kind>(home: &Path, content: &T) -> io::Result<Self> {
        let directory = home.join(DIRECTORY);
        std::fs::create_dir_all(&directory)?;
        let stem = format!("{}-{}", T::NAME, random_token());
        let [lock_path, path] = ["lock", "json"].map(|end| directory.join(format!("{stem}.{end}")));
        let lock = File::create(&lock_path)?;
        lock.lock()?;
        std::fs::write(&path, serde_json::to_vec(content)?)?;
        Ok(Self { _lock: lock, paths: [path, lock_path] })
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        for path in &self.paths {
            std::fs::remove_file(path).ok(); // One that stays counts no more.
        }
    }
}

/// All signs of this kind that are up in the master's directory `home`. Waits for a disk.
pub fn all<T: Kind>(home: &Path) -> Vec<T> {
    let Ok(entries) = std::fs::read_dir(home.join(DIRECTORY)) else { return Vec::new() };
    let is_lock = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".lock") && name.starts_with(T::NAME)
    };
    let locks = entries.flatten().map(|entry| entry.path()).filter(is_lock);
    locks.take(MOST_SIGNS).filter_map(|lock| read(&lock)).collect()
}

fn read<T: Kind>(lock_path: &Path) -> Option<T> {
    let lock = File::open(lock_path).ok()?;
    let path = lock_path.with_extension("json");
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        // Whoever put it up is gone.
        _ => {
            let written = lock.metadata().and_then(|file| file.modified()).ok()?;
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            if age > STALE {
                std::fs::remove_file(&path).ok();
                std::fs::remove_file(lock_path).ok();
            }
            return None;
        }
    }
    if std::fs::metadata(&path).ok()?.len() > MOST_BYTES {
        return None;
    }
    serde_json::from_slice(&std::fs::read(&path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_counts_as_long_as_it_is_held_and_kinds_are_apart() {
        let home = tempfile::tempdir().expect("a directory");
        let door = |port: u16| DoorSign { address: format!("127.0.0.1:{port}") };
        assert_eq!(all::<DoorSign>(home.path()), []);
        let first = Sign::put(home.path(), &door(1)).expect("put up");
        let _second = Sign::put(home.path(), &door(2)).expect("put up");
        assert_eq!(all::<DoorSign>(home.path()).len(), 2);
        assert_eq!(all::<ServiceSign>(home.path()), []);
        drop(first);
        assert_eq!(all::<DoorSign>(home.path()), [door(2)]);
    }

    #[test]
    fn what_a_process_left_that_was_killed_counts_no_more() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = home.path().join(DIRECTORY);
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join("door-1.lock"), "").expect("written");
        std::fs::write(directory.join("door-1.json"), r#"{"address":"a:1"}"#).expect("written");
        assert_eq!(all::<DoorSign>(home.path()), []);
        let _held = {
            let lock = File::open(directory.join("door-1.lock")).expect("there");
            lock.lock().expect("locked");
            std::fs::write(directory.join("door-1.json"), "{").expect("written");
            lock
        };
        assert_eq!(all::<DoorSign>(home.path()), [], "garbage says nothing");
    }
}
