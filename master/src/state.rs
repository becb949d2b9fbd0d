//! What the master keeps on its own disk between runs: digests, measurements, the plan counter.
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cake_checkpoint::DigestCache;
use cake_identity::files::{open_lock, replace};
use serde::{Deserialize, Serialize};

use crate::cluster::Measured;
use crate::pace::{Pace, Seen};

/// Most measurements kept; the oldest go first.
const MEASUREMENTS: usize = 256;
/// How long a measurement is as good as new: devices change, if slowly (seconds).
const GOOD_SECONDS: u64 = 24 * 3600;

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
    /// As timed.
    measured: Measured,
    /// When, in seconds since 1970.
    at_seconds: u64,
    /// As it ran since then, in the unit of what was timed.
    #[serde(default)]
    seen: Option<Seen>,
}

impl Measurement {
    fn pace(&self) -> Pace {
        let Measured { decode_seconds, quiet, .. } = self.measured;
        Pace { probed: decode_seconds, quiet, seen: self.seen }
    }

    fn keep(&mut self, Pace { probed, quiet, seen }: Pace) {
        (self.measured.decode_seconds, self.measured.quiet, self.seen) = (probed, quiet, seen);
    }

    /// What is to be expected; not `quiet` if it should be measured again.
    fn expected(&self, now: u64) -> Measured {
        let pace = self.pace();
        let quiet = pace.is_certain(now) && now.saturating_sub(self.at_seconds) <= GOOD_SECONDS;
        Measured { decode_seconds: pace.seconds(now), quiet, ..self.measured.clone() }
    }
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

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What was measured last of a worker, whichever model it was for: of the process `instance` if that is given.
    pub fn link(&self, worker_id: &str, instance: Option<&str>) -> Option<Measured> {
        let start = match instance {
            Some(instance) => format!("{worker_id}/{instance}/"),
            None => format!("{worker_id}/"),
        };
        let all = self.measurements().into_iter();
        let of_worker = all.filter(|(key, _)| key.starts_with(&start));
        of_worker.max_by_key(|(_, known)| known.at_seconds).map(|(_, known)| known.measured)
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
        let lock = open_lock(&self.directory.join("generation.lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let last: u64 = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| failed(ErrorKind::InvalidData.into()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(failed(error)),
        };
        let next = last.checked_add(1).ok_or_else(|| failed(ErrorKind::InvalidData.into()))?;
        replace(&path, next.to_string().as_bytes()).map_err(failed)?;
        Ok(next)
    }

    /// What was measured of a worker process before, under `key`, and how it ran since; not `quiet` if it should
    /// be measured again.
    pub fn measured(&self, key: &str) -> Option<Measured> {
        self.measurements().remove(key).map(|known| known.expected(unix_seconds()))
    }

    /// Remembers a measurement; returns what is to be expected, with what was known before. Failing to remember is
    /// harmless: it is only measured again.
    pub fn remember(&self, key: &str, measured: Measured) -> Measured {
        let mut all = self.measurements();
        let now = unix_seconds();
        let Measured { decode_seconds, quiet, .. } = measured;
        let before = all.get(key).map(Measurement::pace);
        let pace = before.map_or(Pace::probed(decode_seconds, quiet), |before| {
            before.probed_again(decode_seconds, quiet)
        });
        let mut known = Measurement { measured, at_seconds: now, seen: None };
        known.keep(pace);
        let expected = known.expected(now);
        all.insert(key.to_owned(), known);
        self.keep(all);
        expected
    }

    /// Remembers that what is known under `key` took so many seconds for so many bytes while it ran; nothing if
    /// it is not known.
    pub fn ran(&self, key: &str, seconds: f64, bytes: u64) {
        let mut all = self.measurements();
        let Some(known) = all.get_mut(key) else { return };
        let scale = known.measured.probe_bytes as f64 / bytes.max(1) as f64;
        known.keep(known.pace().ran(seconds * scale, unix_seconds()));
        self.keep(all);
    }

    /// Forgets what was measured under `key`, and how it ran.
    pub fn forget(&self, key: &str) {
        let mut all = self.measurements();
        if all.remove(key).is_some() {
            self.keep(all);
        }
    }

    /// Writes measurements down, the latest of too many.
    fn keep(&self, mut all: HashMap<String, Measurement>) {
        while all.len() > MEASUREMENTS {
            let oldest = all.iter().min_by_key(|(key, known)| (known.at_seconds, (*key).clone()));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            all.remove(&oldest);
        }
        let json = serde_json::to_vec(&all).unwrap_or_default();
        if let Err(error) = replace(&self.directory.join("measured.json"), &json) {
            tracing::warn!(%error, "cannot remember what was measured");
        }
    }

    fn measurements(&self) -> HashMap<String, Measurement> {
        let text = std::fs::read(self.directory.join("measured.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default() // Garbage counts as nothing known.
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
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
        let measured = measured(0.5, true);
        assert_eq!(state.remember("phone", measured.clone()), measured);
        assert_eq!(state.measured("phone"), Some(measured.clone()));
        state.forget("phone");
        assert_eq!(state.measured("phone"), None);
        state.remember("id/process/bf16/shape", measured.clone());
        assert_eq!(state.link("id", Some("process")), Some(measured.clone()));
        assert_eq!(state.link("id", None), Some(measured));
        assert_eq!(state.link("id", Some("other")), None);
        std::fs::write(directory.path().join("measured.json"), b"{").expect("written");
        assert_eq!(state.measured("phone"), None);
    }

    fn measured(decode_seconds: f64, quiet: bool) -> Measured {
        Measured { decode_seconds, probe_bytes: 7, rtt_seconds: 0.1, bytes_per_second: 9.0, quiet }
    }

    #[test]
    fn what_ran_corrects_a_measurement_beside_other_work() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::at(directory.path().to_owned()).expect("made");
        state.ran("phone", 1.0, 7);
        assert_eq!(state.measured("phone"), None, "it was never measured");
        state.remember("phone", measured(0.5, false));
        assert!(!state.measured("phone").expect("known").quiet, "to be measured again");
        state.ran("phone", 0.25, 14); // Two layers.
        let known = state.measured("phone").expect("known");
        assert_eq!((known.decode_seconds, known.quiet), (0.125, true));
        let again = state.remember("phone", measured(0.4, false));
        assert_eq!(again, known, "a noisy measurement changes nothing");
    }

    #[test]
    fn an_old_measurement_is_good_until_there_is_a_new_one() {
        let known = Measurement { measured: measured(0.5, true), at_seconds: 1000, seen: None };
        assert!(known.expected(1000 + GOOD_SECONDS).quiet);
        let old = known.expected(1001 + GOOD_SECONDS);
        assert_eq!((old.decode_seconds, old.quiet), (0.5, false));
        // As the last version wrote it: nothing was known of noise.
        let json = r#"{"measured":{"decode_seconds":0.5,"probe_bytes":7,"rtt_seconds":0.1,"bytes_per_second":9.0},"at_seconds":1}"#;
        let before: Measurement = serde_json::from_str(json).expect("understood");
        assert!(!before.expected(2).quiet);
    }
}
