//! What is in a cache.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cake_checkpoint::hub_folder;

use crate::cache::Folder;
use crate::files::{size, walk};
use crate::names::{is_commit, unsafe_name};
use crate::partial::INCOMPLETE;

/// What the folder of a model begins with.
const MODELS: &str = "models--";
/// A text longer than this is no commit.
const MAX_REF_BYTES: u64 = 256;

/// A model in a cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// `org/name`.
    pub repo: String,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes on the disk, what is partial included.
    pub bytes: u64,
    /// Files that are not all there.
    pub partial_files: usize,
    /// Their bytes on the disk.
    pub partial_bytes: u64,
    /// When a file of it was last read or written, as far as the file system notes that.
    pub last_used: Option<SystemTime>,
    /// Its revisions, by commit.
    pub revisions: Vec<CachedRevision>,
}

/// A model at a commit.
#[derive(Clone, Debug)]
pub struct CachedRevision {
    /// The commit.
    pub commit: String,
    /// What is known to be this commit: `main`, for instance.
    pub refs: Vec<String>,
    /// How many files it shows.
    pub files: usize,
    /// Bytes of these, which other revisions may share.
    pub bytes: u64,
}

/// All models of a cache, by name. What cannot be read is not there.
pub fn list(cache: &Path) -> Vec<CachedModel> {
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let mut models: Vec<CachedModel> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let repo = name.to_str()?.strip_prefix(MODELS)?.replacen("--", "/", 1);
            // A name that no model of the Hub has may be anything, also for a terminal.
            let is_model = hub_folder(&repo).is_some() && entry.path().is_dir();
            is_model.then(|| model(repo, Folder::at(entry.path())))
        })
        .collect();
    models.sort_by(|a, b| a.repo.cmp(&b.repo));
    models
}

fn model(repo: String, folder: Folder) -> CachedModel {
    let mut partials = Vec::new();
    let mut last_used = None;
    for path in walk(&folder.blobs()) {
        let meta = path.symlink_metadata();
        last_used =
            last_used.max(meta.and_then(|meta| Ok(meta.accessed()?.max(meta.modified()?))).ok());
        if path.to_str().is_some_and(|path| path.ends_with(INCOMPLETE)) {
            partials.push(path);
        }
    }
    CachedModel {
        repo,
        path: folder.path().to_owned(),
        bytes: size(walk(folder.path())),
        partial_files: partials.len(),
        partial_bytes: size(partials),
        last_used,
        revisions: revisions(&folder)
            .into_iter()
            .filter(|revision| unsafe_name(&revision.commit).is_none())
            .collect(),
    }
}

/// The revisions of a model that are there.
pub(crate) fn revisions(folder: &Folder) -> Vec<CachedRevision> {
    let mut refs = refs(folder);
    let entries = std::fs::read_dir(folder.snapshots()).into_iter().flatten().flatten();
    let mut revisions: Vec<CachedRevision> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let commit = entry.file_name().into_string().ok()?;
            let files = walk(&entry.path());
            let bytes = files.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
            Some(CachedRevision {
                refs: refs.remove(&commit).unwrap_or_default(),
                commit,
                files: files.len(),
                bytes,
            })
        })
        .collect();
    revisions.sort_by(|a, b| a.commit.cmp(&b.commit));
    revisions
}

/// Of each commit, what is called so. A name that no revision can have is none.
pub(crate) fn refs(folder: &Folder) -> BTreeMap<String, Vec<String>> {
    let mut refs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in walk(&folder.refs()) {
        let is_short =
            path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_REF_BYTES);
        let text = is_short.then(|| std::fs::read_to_string(&path).ok()).flatten();
        let commit = text.map(|text| text.trim().to_owned()).filter(|text| is_commit(text));
        if let (Some(commit), Some(name)) = (commit, name_of_ref(folder, &path)) {
            refs.entry(commit).or_default().push(name);
        }
    }
    refs
}

/// What the file at `path` names, with slashes on any system.
fn name_of_ref(folder: &Folder, path: &Path) -> Option<String> {
    let parts = path.strip_prefix(folder.refs()).ok()?.iter().map(OsStr::to_str);
    let name = parts.collect::<Option<Vec<&str>>>()?.join("/");
    unsafe_name(&name).is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{make_directory, put};

    /// A cache with a model of one commit, `main`.
    fn cache() -> (tempfile::TempDir, Folder, String) {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/tiny".parse().unwrap());
        let commit = "c".repeat(40);
        make_directory(&folder.snapshots().join(&commit)).unwrap();
        folder.set_ref("main", &commit).unwrap();
        (cache, folder, commit)
    }

    #[test]
    fn a_ref_that_is_being_written_is_none() {
        let (cache, folder, commit) = cache();
        let mut seen = Vec::new();
        put(folder.path(), &folder.refs().join("v1"), |new| {
            std::fs::write(new, &commit)?;
            seen = list(cache.path());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen[0].revisions[0].refs, ["main"]);
        assert_eq!(list(cache.path())[0].revisions[0].refs, ["main", "v1"]);
        // Of a process that was killed in the middle.
        std::fs::write(folder.path().join(".0123.tmp"), &commit).unwrap();
        let seen = list(cache.path());
        assert_eq!((seen[0].revisions.len(), seen[0].revisions[0].files), (1, 0));
        assert_eq!(seen[0].revisions[0].refs, ["main", "v1"]);
    }

    #[cfg(unix)]
    #[test]
    fn names_that_a_terminal_would_obey_are_not_listed() {
        let (cache, folder, commit) = cache();
        let odd = "\u{1b}[2J";
        std::fs::create_dir(cache.path().join(format!("models--org--{odd}"))).unwrap();
        std::fs::create_dir(folder.snapshots().join(odd)).unwrap();
        for name in [odd, "a\\b"] {
            std::fs::write(folder.refs().join(name), &commit).unwrap();
        }
        let seen = list(cache.path());
        assert_eq!((seen.len(), seen[0].repo.as_str()), (1, "org/tiny"));
        assert_eq!((seen[0].revisions.len(), &seen[0].revisions[0].commit), (1, &commit));
        assert_eq!(seen[0].revisions[0].refs, ["main"]);
    }
}
