//! The master's memory of manifests: what was hashed once is not read again.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::blob::{Digest, Manifest};
use crate::error::Error;

/// Longest file read back; above it the weights are hashed again.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Manifests by checkpoint identity and layer, one JSON file per identity.
///
/// Only a memory: a file that is absent, damaged or of another version is ignored and written anew.
/// Each manifest is stored with its name, which is checked when it is read.
#[derive(Debug)]
pub struct DigestCache {
    directory: PathBuf,
    /// What was read or written so far, by file name.
    known: Mutex<HashMap<String, Layers>>,
    /// Makes the names of temporary files differ within this process.
    temporary: AtomicU64,
}

type Layers = BTreeMap<usize, Remembered>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    name: Digest,
    manifest: Manifest,
}

impl DigestCache {
    /// A memory in that directory, which is made if needed.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made.
    pub fn open(directory: &Path) -> Result<DigestCache, Error> {
        fs::create_dir_all(directory)
            .map_err(|cause| Error::io("create directory", directory, cause))?;
        Ok(DigestCache {
            directory: directory.into(),
            known: Mutex::default(),
            temporary: AtomicU64::new(0),
        })
    }

    /// The manifest of one layer of the checkpoint with that identity, if it is remembered.
    pub fn get(&self, identity: &str, layer: usize) -> Option<Manifest> {
        let file = file_name(identity);
        let mut known = self.lock();
        let layers = known.entry(file).or_insert_with_key(|file| self.load(file));
        layers.get(&layer).map(|remembered| remembered.manifest.clone())
    }

    /// Remembers the manifest of one layer.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written; it is then remembered by this process only.
    pub fn put(&self, identity: &str, layer: usize, manifest: &Manifest) -> Result<(), Error> {
        let file = file_name(identity);
        let mut known = self.lock();
        // Read again: another process may have added layers of the same checkpoint.
        let mut layers = self.load(&file);
        layers.extend(known.remove(&file).unwrap_or_default());
        layers.insert(layer, Remembered { name: manifest.name(), manifest: manifest.clone() });
        let json = serde_json::to_vec(&layers).expect("strings and numbers always serialise");
        known.insert(file.clone(), layers);
        self.replace(&self.directory.join(file), &json)
    }

    /// What a file remembers, without whatever in it is damaged.
    fn load(&self, file: &str) -> Layers {
        let path = self.directory.join(file);
        let usable = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= MAX_FILE_BYTES);
        let json = if usable { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        let mut layers: Layers = match serde_json::from_slice(&json) {
            Ok(layers) => layers,
            Err(error) => {
                if !json.is_empty() {
                    tracing::debug!(path = %path.display(), %error, "digest cache ignored");
                }
                Layers::new()
            }
        };
        layers.retain(|_, kept| kept.manifest.check().is_ok() && kept.manifest.name() == kept.name);
        layers
    }

    /// Replaces a file in one step: readers see the old or the new one, whole.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let written = fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&temporary, path));
        written.map_err(|cause| {
            let _ = fs::remove_file(&temporary); // Best effort: the error below is what matters.
            Error::io("write", path, cause)
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Layers>> {
        // A panic elsewhere leaves at most a missing entry, which is read again.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file of an identity: its own text if it is a digest, else a digest of it.
fn file_name(identity: &str) -> String {
    let digest = identity.parse().unwrap_or_else(|_| Digest::of(identity.as_bytes()));
    format!("{digest}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::BlobSource;
    use crate::testing::golden;

    fn manifests() -> (String, Manifest, Manifest) {
        let checkpoint = golden("qwen2");
        let manifest = |layer| BlobSource::new(&checkpoint, layer).manifest().unwrap();
        (checkpoint.identity().unwrap(), manifest(0), manifest(1))
    }

    #[test]
    fn remembers_across_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let (identity, first, second) = manifests();
        let cache = DigestCache::open(&directory.path().join("new/deep")).unwrap();
        assert_eq!(cache.get(&identity, 0), None);
        cache.put(&identity, 0, &first).unwrap();
        cache.put(&identity, 1, &second).unwrap();
        let again = DigestCache::open(&directory.path().join("new/deep")).unwrap();
        assert_eq!(again.get(&identity, 0), Some(first));
        assert_eq!(again.get(&identity, 1), Some(second));
        assert_eq!(again.get(&identity, 2), None);
        assert_eq!(again.get("another", 0), None);
        let files = fs::read_dir(directory.path().join("new/deep")).unwrap().count();
        assert_eq!(files, 1, "no temporary file stays");
    }

    #[test]
    fn two_caches_on_one_directory_add_up() {
        let directory = tempfile::tempdir().unwrap();
        let (identity, first, second) = manifests();
        let one = DigestCache::open(directory.path()).unwrap();
        let two = DigestCache::open(directory.path()).unwrap();
        assert_eq!((one.get(&identity, 0), two.get(&identity, 0)), (None, None));
        one.put(&identity, 0, &first).unwrap();
        two.put(&identity, 1, &second).unwrap();
        let three = DigestCache::open(directory.path()).unwrap();
        assert!(three.get(&identity, 0).is_some() && three.get(&identity, 1).is_some());
    }

    #[test]
    fn garbage_is_ignored_and_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let (identity, first, _) = manifests();
        let path = directory.path().join(file_name(&identity));
        for garbage in ["", "{", "[]", "null", "{\"0\":{}}", "\0\0\0"] {
            fs::write(&path, garbage).unwrap();
            let cache = DigestCache::open(directory.path()).unwrap();
            assert_eq!(cache.get(&identity, 0), None, "{garbage:?}");
            cache.put(&identity, 0, &first).unwrap();
            let again = DigestCache::open(directory.path()).unwrap();
            assert_eq!(again.get(&identity, 0).as_ref(), Some(&first));
        }
    }

    #[test]
    fn a_changed_digest_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let (identity, first, _) = manifests();
        DigestCache::open(directory.path()).unwrap().put(&identity, 0, &first).unwrap();
        let path = directory.path().join(file_name(&identity));
        let digest = first.chunks[0].to_string();
        let damaged = fs::read_to_string(&path)
            .unwrap()
            .replace(&digest, &Digest::of(b"something else").to_string());
        fs::write(&path, damaged).unwrap();
        assert_eq!(DigestCache::open(directory.path()).unwrap().get(&identity, 0), None);
    }
}
