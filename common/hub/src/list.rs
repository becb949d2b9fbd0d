//! What is in a cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::Folder;
use crate::files::{size, walk};
use crate::names::is_commit;
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
            entry.path().is_dir().then(|| model(repo, Folder::at(entry.path())))
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
        revisions: revisions(&folder),
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

/// Of each commit, what is called so.
pub(crate) fn refs(folder: &Folder) -> BTreeMap<String, Vec<String>> {
    let mut refs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in walk(&folder.refs()) {
        let is_short =
            path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_REF_BYTES);
        let text = is_short.then(|| std::fs::read_to_string(&path).ok()).flatten();
        let commit = text.map(|text| text.trim().to_owned()).filter(|text| is_commit(text));
        let name = path.strip_prefix(folder.refs()).ok().and_then(Path::to_str);
        if let (Some(commit), Some(name)) = (commit, name) {
            refs.entry(commit).or_default().push(name.replace('\\', "/"));
        }
    }
    refs
}
