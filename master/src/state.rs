//! What the master keeps on its own disk between runs: digests, measurements, the plan counter.
use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cake_checkpoint::DigestCache;
use serde::{Deserialize, Serialize};

use crate::cluster::Measured;

/// Most measurements kept; the oldest go first.
const MEASUREMENTS: usize = 256;

/// The master's state directory.
#[derive(Clone, Debug)]
pub struct State {
    directory: PathBuf,
}

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No environment variable says where.
    #[error("no place for the master's state: set CAKE_STATE or HOME")]
    NoPlace,
    /// It cannot be read or written.
    #[error("cannot keep the master's state in {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Measurements of one worker process for one layer shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurement {
    measured: Measured,
    at_seconds: u64,
}

impl State {
    /// The directory named by `CAKE_STATE`, else `cake` in the user's cache directory.
    ///
    /// # Errors
    /// [`Error`] if there is none or it cannot be made.
    pub fn open() -> Result<Self, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = variable("CAKE_STATE")
            .map(PathBuf::from)
            .or_else(|| variable("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("cake")))
            .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache/cake")))
            .ok_or(Error::NoPlace)?;
        Self::at(directory)
    }

    /// Where what people typed in chats is remembered.
    pub fn chat_history(&self) -> PathBuf {
        self.directory.join("chat-history")
    }

    /// A given directory, made if it is not there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn at(directory: PathBuf) -> Result<Self, Error> {
        std::fs::create_dir_all(&directory)
            .map_err(|source| Error::Io { path: directory.clone(), source })?;
        Ok(Self { directory })
    }

    /// Manifests of layers that were hashed before.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn digests(&self) -> Result<DigestCache, cake_checkpoint::Error> {
        DigestCache::open(&self.directory.join("digests"))
    }

    /// The next plan generation: a counter that only grows, also over restarts.
    ///
    /// # Errors
    /// [`Error::Io`]: a generation that could repeat must not be used.
    pub fn next_generation(&self) -> Result<u64, Error> {
        let path = self.directory.join("generation");
        let failed = |source| Error::Io { path: path.clone(), source };
        // Two masters on one machine take turns.
        let lock = std::fs::File::create(self.directory.join("generation.lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let last: u64 = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| failed(ErrorKind::InvalidData.into()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(failed(error)),
        };
        let next = last.checked_add(1).ok_or_else(|| failed(ErrorKind::InvalidData.into()))?;
        write_atomically(&path, next.to_string().as_bytes()).map_err(failed)?;
        Ok(next)
    }

    /// What was measured of a worker process before, under `key`.
    pub fn measured(&self, key: &str) -> Option<Measured> {
        self.measurements().remove(key).map(|known| known.measured)
    }

    /// Remembers a measurement. Failing to is harmless: it is only measured again.
    pub fn remember(&self, key: &str, measured: Measured) {
        let mut all = self.measurements();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        all.insert(key.to_owned(), Measurement { measured, at_seconds: now });
        while all.len() > MEASUREMENTS {
            let oldest = all.iter().min_by_key(|(key, known)| (known.at_seconds, (*key).clone()));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            all.remove(&oldest);
        }
        let json = serde_json::to_vec(&all).unwrap_or_default();
        if let Err(error) = write_atomically(&self.directory.join("measured.json"), &json) {
            tracing::warn!(%error, "cannot remember what was measured");
        }
    }

    fn measurements(&self) -> HashMap<String, Measurement> {
        let text = std::fs::read(self.directory.join("measured.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default() // Garbage counts as nothing known.
    }
}

fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_data()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_only_grow() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::at(directory.path().join("state")).expect("made");
        assert_eq!(state.next_generation().expect("written"), 1);
        let again = State::at(directory.path().join("state")).expect("there");
        assert_eq!(again.next_generation().expect("written"), 2);
        std::fs::write(directory.path().join("state/generation"), "?").expect("written");
        again.next_generation().expect_err("it could repeat one that was used");
    }

    #[test]
    fn measurements_survive_and_garbage_is_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::at(directory.path().to_owned()).expect("made");
        let measured = Measured {
            decode_seconds: 0.5,
            probe_bytes: 7,
            rtt_seconds: 0.1,
            bytes_per_second: 9.0,
        };
        state.remember("phone", measured.clone());
        assert_eq!(state.measured("phone"), Some(measured));
        std::fs::write(directory.path().join("measured.json"), b"{").expect("written");
        assert_eq!(state.measured("phone"), None);
    }
}
