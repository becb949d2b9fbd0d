//! Taking models, or revisions of them, out of a cache.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cache::Folder;
use crate::error::Error;
use crate::files::{is_link, size, walk};
use crate::list::{refs, revisions};
use crate::lock::Lock;
use crate::names::Wanted;
use crate::partial::INCOMPLETE;

/// Fewest digits by which a commit may be named.
const MIN_COMMIT_DIGITS: usize = 7;

/// What will be deleted. As long as it is there, nobody fetches files of the model.
#[derive(Debug)]
pub struct Removal {
    /// Where it is: the model's folder.
    pub path: PathBuf,
    /// Commits that will be gone.
    pub commits: Vec<String>,
    /// Bytes on the disk that will be free.
    pub bytes: u64,
    what: What,
    _lock: Lock,
}

#[derive(Debug)]
enum What {
    /// All of the folder.
    Folder,
    /// These files and this snapshot.
    Revision { files: Vec<PathBuf>, snapshot: PathBuf },
}

/// What there is to delete of a model, or of the revision that was said, in the first of these caches that has it.
/// Nothing is deleted yet.
///
/// # Errors
/// [`Error::NotCached`]; [`Error::Held`] while files of it are fetched, whatever revision; [`Error::Link`]; [`Error::Io`].
pub fn removal(caches: &[PathBuf], wanted: &Wanted) -> Result<Removal, Error> {
    let folders: Vec<PathBuf> = caches.iter().map(|cache| cache.join(wanted.folder())).collect();
    let not_cached = || Error::NotCached { wanted: wanted.to_string(), looked: folders.clone() };
    let path =
        folders.iter().find(|path| path.symlink_metadata().is_ok()).ok_or_else(not_cached)?;
    let folder = Folder::at(path.clone());
    for inside in [path.clone(), folder.blobs(), folder.snapshots(), folder.refs()] {
        if is_link(&inside) {
            return Err(Error::Link { path: inside });
        }
    }
    let lock = Lock::alone(&folder, &wanted.repo)?;
    let revisions = revisions(&folder);
    if let Some(revision) = &wanted.revision {
        let commit = commit_of(&folder, revision).ok_or_else(not_cached)?;
        // The last one takes the folder with it.
        if revisions.iter().any(|other| other.commit != commit) || !partials(&folder).is_empty() {
            return Ok(of_revision(&folder, commit, lock));
        }
    }
    let commits = revisions.into_iter().map(|revision| revision.commit).collect();
    let (bytes, what) = (size(walk(path)), What::Folder);
    Ok(Removal { path: path.clone(), commits, bytes, what, _lock: lock })
}

/// The commit that a name, or the beginning of a commit's own, stands for.
fn commit_of(folder: &Folder, revision: &str) -> Option<String> {
    let named =
        refs(folder).into_iter().find(|(_, names)| names.iter().any(|name| name == revision));
    let there: Vec<String> =
        revisions(folder).into_iter().map(|revision| revision.commit).collect();
    if let Some((commit, _)) = named {
        return there.contains(&commit).then_some(commit);
    }
    let begins =
        |commit: &&String| revision.len() >= MIN_COMMIT_DIGITS && commit.starts_with(revision);
    match there.iter().filter(begins).collect::<Vec<_>>()[..] {
        [commit] => Some(commit.clone()),
        _ => None,
    }
}

/// A revision: its snapshot, its names, and blobs that no other snapshot links to.
fn of_revision(folder: &Folder, commit: String, lock: Lock) -> Removal {
    let snapshot = folder.snapshots().join(&commit);
    let others = std::fs::read_dir(folder.snapshots()).into_iter().flatten().flatten();
    let others = others.map(|entry| entry.path()).filter(|path| *path != snapshot);
    let used: HashSet<OsString> = others.flat_map(|other| blobs_of(&other)).collect();
    let own = blobs_of(&snapshot).into_iter().filter(|name| !used.contains(name));
    let own: HashSet<PathBuf> = own.map(|name| folder.blobs().join(name)).collect();
    let mut files: Vec<PathBuf> =
        own.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect();
    let names = refs(folder).remove(&commit).unwrap_or_default();
    files.extend(names.into_iter().map(|name| folder.refs().join(name)));
    let bytes = size(files.iter().cloned().chain(walk(&snapshot)));
    let what = What::Revision { files, snapshot };
    Removal { path: folder.path().to_owned(), commits: vec![commit], bytes, what, _lock: lock }
}

/// Names of the blobs that a snapshot links to. A link elsewhere is none: what it leads to is not ours.
fn blobs_of(snapshot: &Path) -> Vec<OsString> {
    let links = walk(snapshot).into_iter().filter_map(|path| std::fs::read_link(path).ok());
    let in_blobs = |link: &PathBuf| link.parent().is_some_and(|parent| parent.ends_with("blobs"));
    links.filter(in_blobs).filter_map(|link| Some(link.file_name()?.to_owned())).collect()
}

/// Files of the folder that are not all there.
fn partials(folder: &Folder) -> Vec<PathBuf> {
    let is_partial = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(INCOMPLETE));
    walk(&folder.blobs()).into_iter().filter(is_partial).collect()
}

impl Removal {
    /// Deletes it. Links are deleted, and not followed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn run(&self) -> Result<(), Error> {
        let delete = |path: &Path| {
            std::fs::remove_dir_all(path).map_err(|cause| Error::io("delete", path, cause))
        };
        match &self.what {
            What::Folder => delete(&self.path),
            What::Revision { files, snapshot } => {
                // What shows the files goes first: nobody finds half a model.
                delete(snapshot)?;
                files.iter().try_for_each(|path| {
                    std::fs::remove_file(path).map_err(|cause| Error::io("delete", path, cause))
                })
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::hash::Hash;
    use crate::list::list;
    use crate::listing::RemoteFile;

    /// Two commits: a file of both, and one of each.
    fn cache() -> (tempfile::TempDir, Folder, [String; 2]) {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/tiny".parse().unwrap());
        let commits = ["1", "2"].map(|digit| digit.repeat(40));
        std::fs::create_dir_all(folder.blobs()).unwrap();
        for (commit, own) in commits.iter().zip(["a", "b"]) {
            for (name, digit) in [("both.json", "c"), ("sub/own.json", own)] {
                let hash = Hash::parse(&digit.repeat(40)).unwrap();
                std::fs::write(folder.blob(&hash), vec![7; 10_000]).unwrap();
                folder
                    .show(commit, &RemoteFile { name: name.into(), bytes: 10_000, hash })
                    .unwrap();
            }
        }
        folder.set_ref("main", &commits[1]).unwrap();
        folder.set_ref("v1", &commits[0]).unwrap();
        (cache, folder, commits)
    }

    fn removal_of(cache: &tempfile::TempDir, text: &str) -> Result<Removal, Error> {
        removal(&[cache.path().join("other"), cache.path().to_owned()], &text.parse().unwrap())
    }

    #[test]
    fn a_revision_takes_only_what_is_its_own() {
        let (cache, folder, commits) = cache();
        let before = &list(cache.path())[0];
        assert_eq!((before.repo.as_str(), before.revisions.len()), ("org/tiny", 2));
        assert_eq!((before.revisions[1].refs[0].as_str(), before.revisions[1].files), ("main", 2));
        let removal = removal_of(&cache, "org/tiny@v1").unwrap();
        assert_eq!(removal.commits, [commits[0].clone()]);
        removal.run().unwrap();
        let after = &list(cache.path())[0];
        assert_eq!(before.bytes - after.bytes, removal.bytes);
        drop(removal);
        assert_eq!(after.revisions.len(), 1);
        assert_eq!(walk(&folder.blobs()).len(), 2);
        let shown = folder.snapshots().join(&commits[1]).join("both.json");
        assert_eq!(std::fs::read(shown).unwrap().len(), 10_000);
        // The last one, by the beginning of its commit, takes the folder with it.
        removal_of(&cache, "org/tiny@2222222").unwrap().run().unwrap();
        assert!(!folder.path().exists());
    }

    #[test]
    fn what_is_not_there_is_not_removed() {
        let (cache, folder, _) = cache();
        for text in ["org/other", "org/tiny@v2", "org/tiny@22", "org/tiny@3333333"] {
            let error = removal_of(&cache, text).unwrap_err();
            assert!(matches!(error, Error::NotCached { .. }), "{text}: {error}");
        }
        removal_of(&cache, "org/tiny").unwrap().run().unwrap();
        assert!(!folder.path().exists());
    }

    #[test]
    fn links_out_of_the_cache_are_not_followed() {
        let (cache, folder, commits) = cache();
        let outside = tempfile::tempdir().unwrap();
        let kept = outside.path().join("kept");
        std::fs::write(&kept, "x").unwrap();
        let link = folder.snapshots().join(&commits[0]).join("out");
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        std::os::unix::fs::symlink(&kept, link.with_file_name("out.json")).unwrap();
        removal_of(&cache, "org/tiny@v1").unwrap().run().unwrap();
        assert!(kept.exists());
        std::fs::rename(folder.blobs(), outside.path().join("blobs")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("blobs"), folder.blobs()).unwrap();
        assert!(matches!(removal_of(&cache, "org/tiny"), Err(Error::Link { .. })));
    }

    #[test]
    fn a_model_that_is_being_fetched_stays() {
        let (cache, folder, _) = cache();
        let fetching = Lock::shared(&folder, "org/tiny").unwrap();
        for text in ["org/tiny", "org/tiny@v1"] {
            assert!(matches!(removal_of(&cache, text), Err(Error::Held { .. })), "{text}");
        }
        drop(fetching);
        let removal = removal_of(&cache, "org/tiny@v1").unwrap();
        assert!(matches!(Lock::shared(&folder, "org/tiny"), Err(Error::Held { .. })));
        removal.run().unwrap();
        drop(removal);
        Lock::shared(&folder, "org/tiny").unwrap();
    }

    #[test]
    fn what_was_begun_and_is_not_being_fetched_can_go() {
        let (cache, folder, _) = cache();
        let hash = Hash::parse(&"d".repeat(64)).unwrap();
        let remote = RemoteFile { name: "m".into(), bytes: 5, hash };
        drop(crate::partial::Partial::open(&folder, &remote).unwrap());
        assert_eq!(list(cache.path())[0].partial_files, 1);
        assert!(removal_of(&cache, "org/tiny").is_ok());
    }
}
