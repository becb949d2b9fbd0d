//! The master's memory of manifests: what was hashed once is not read again.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::blob::{Digest, MAX_MANIFEST_BYTES, Manifest};
use crate::error::Error;

/// Longest file read back, a manifest and its name; above it the weights are hashed again.
const MAX_FILE_BYTES: u64 = MAX_MANIFEST_BYTES as u64 + 1024;

/// Manifests by checkpoint identity and layer: a directory per identity, in it a JSON file per layer, so that what a layer
/// costs to read or to write does not grow with the model.
///
/// Only a memory: a file that is absent, damaged or of another version is ignored and written anew.
/// Each manifest is stored with its name, which is checked when it is read.
#[derive(Debug)]
pub struct DigestCache {
    directory: PathBuf,
    /// Makes the names of temporary files differ within this process.
    temporary: AtomicU64,
}

#[derive(Serialize, Deserialize)]
struct Remembered<M> {
    name: Digest,
    manifest: M,
}

impl DigestCache {
    /// A memory in that directory, which is made if needed.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made.
    pub fn open(directory: &Path) -> Result<DigestCache, Error> {
        fs::create_dir_all(directory)
            .map_err(|cause| Error::io("create directory", directory, cause))?;
        Ok(DigestCache { directory: directory.into(), temporary: AtomicU64::new(0) })
    }

    /// The manifest of one layer of the checkpoint with that identity, if it is remembered.
    pub fn get(&self, identity: &str, layer: usize) -> Option<Manifest> {
        let path = self.file(identity, layer);
        let usable = fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= MAX_FILE_BYTES);
        let json = usable.then(|| fs::read(&path).ok()).flatten()?;
        match serde_json::from_slice::<Remembered<Manifest>>(&json) {
            Ok(Remembered { name, manifest }) => {
                (manifest.check().is_ok() && manifest.name() == name).then_some(manifest)
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "remembered manifest ignored");
                None
            }
        }
    }

    /// Remembers the manifest of one layer.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub fn put(&self, identity: &str, layer: usize, manifest: &Manifest) -> Result<(), Error> {
        let path = self.file(identity, layer);
        if let Some(directory) = path.parent() {
            // Not what that lies in: whoever removed it while a layer was hashed wants it to be gone.
            match fs::create_dir(directory) {
                Err(cause) if cause.kind() != ErrorKind::AlreadyExists => {
                    return Err(Error::io("create directory", directory, cause));
                }
                _ => {}
            }
        }
        let json = serde_json::to_vec(&Remembered { name: manifest.name(), manifest });
        self.replace(&path, &json.expect("strings and numbers always serialise"))
    }

    /// The file of a layer. An identity has the directory of its own text if it is a digest, else of a digest of it.
    fn file(&self, identity: &str, layer: usize) -> PathBuf {
        let digest = identity.parse().unwrap_or_else(|_| Digest::of(identity.as_bytes()));
        self.directory.join(digest.to_string()).join(format!("{layer}.json"))
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
        let of_model = again.file(&identity, 0).parent().unwrap().to_owned();
        assert_eq!(fs::read_dir(of_model).unwrap().count(), 2, "no temporary file stays");
    }

    #[test]
    fn a_directory_that_somebody_removed_is_not_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("digests");
        let (identity, first, _) = manifests();
        let cache = DigestCache::open(&directory).unwrap();
        fs::remove_dir(&directory).unwrap();
        let error = cache.put(&identity, 0, &first).unwrap_err();
        assert!(error.to_string().contains("create directory"), "{error}");
        assert!(!directory.exists());
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
        let path = DigestCache::open(directory.path()).unwrap().file(&identity, 0);
        fs::create_dir(path.parent().unwrap()).unwrap();
        for garbage in ["", "{", "[]", "null", "{\"name\":0}", "\0\0\0"] {
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
        let path = DigestCache::open(directory.path()).unwrap().file(&identity, 0);
        let digest = first.chunks[0].to_string();
        let damaged = fs::read_to_string(&path)
            .unwrap()
            .replace(&digest, &Digest::of(b"something else").to_string());
        fs::write(&path, damaged).unwrap();
        assert_eq!(DigestCache::open(directory.path()).unwrap().get(&identity, 0), None);
    }
}
