//! A model's folder in the cache, as the Hub's own tools lay it out:
//!
//! ```text
//! models--org--name/refs/main                       text: the commit
//!                   blobs/DIGEST                    a file's bytes
//!                   snapshots/COMMIT/config.json    a link to ../../blobs/DIGEST
//! ```
//!
//! What is being made lies in the folder itself until it is whole, where nobody takes it for a revision or a file.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::{link, make_directory, put};
use crate::hash::Hash;
use crate::listing::RemoteFile;
use crate::names::Wanted;

/// A model's folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn of(cache: &Path, wanted: &Wanted) -> Folder {
        Folder { path: cache.join(wanted.folder()) }
    }

    pub(crate) fn at(path: PathBuf) -> Folder {
        Folder { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }

    /// Where locks of its files are.
    pub(crate) fn locks(&self) -> PathBuf {
        self.path.with_file_name(".locks").join(self.path.file_name().unwrap_or_default())
    }

    pub(crate) fn refs(&self) -> PathBuf {
        self.path.join("refs")
    }

    pub(crate) fn blob(&self, hash: &Hash) -> PathBuf {
        self.blobs().join(hash.name())
    }

    /// Whether the file is there. Its name says that it was checked; its length that nothing happened to it since.
    pub(crate) fn has(&self, file: &RemoteFile) -> bool {
        self.blob(&file.hash)
            .metadata()
            .is_ok_and(|meta| meta.is_file() && meta.len() == file.bytes)
    }

    /// Has the snapshot of a commit show a file.
    pub(crate) fn show(&self, commit: &str, file: &RemoteFile) -> Result<(), Error> {
        let path = self.snapshots().join(commit).join(&file.name);
        let depth = 2 + file.name.matches('/').count();
        let text: PathBuf =
            std::iter::repeat_n("..", depth).chain(["blobs", file.hash.name()]).collect();
        if std::fs::read_link(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        make_directory(path.parent().unwrap_or(&self.path))?;
        put(&self.path, &path, |new| link(new, &text, &self.blob(&file.hash)))
    }

    /// Notes which commit a revision is. A commit's own name says so itself.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit {
            return Ok(());
        }
        let path = self.refs().join(revision);
        make_directory(path.parent().unwrap_or(&self.path))?;
        put(&self.path, &path, |new| std::fs::write(new, commit))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_lead_out_of_the_snapshot_however_deep_they_lie() {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/name".parse().unwrap());
        let commit = "c".repeat(40);
        let hash = Hash::parse(&"a".repeat(64)).unwrap();
        make_directory(&folder.blobs()).unwrap();
        std::fs::write(folder.blob(&hash), "abc").unwrap();
        for name in ["config.json", "sub/folder/b.json"] {
            let file = RemoteFile { name: name.into(), bytes: 3, hash: hash.clone() };
            assert!(folder.has(&file));
            for _ in 0..2 {
                folder.show(&commit, &file).unwrap();
                let path = folder.snapshots().join(&commit).join(name);
                assert_eq!(std::fs::read(&path).unwrap(), b"abc");
                assert!(std::fs::read_link(&path).unwrap().is_relative());
            }
            assert!(!folder.has(&RemoteFile { bytes: 4, ..file }));
        }
        folder.set_ref("refs/pr/1", &commit).unwrap();
        folder.set_ref(&commit, &commit).unwrap();
        assert_eq!(std::fs::read_to_string(folder.refs().join("refs/pr/1")).unwrap(), commit);
        assert_eq!(std::fs::read_dir(folder.refs()).unwrap().count(), 1);
    }
}
