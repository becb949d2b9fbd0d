//! From what a person typed to the files of a checkpoint.

mod error;
mod kept_error;
mod list;
mod lm_studio;
mod names;
mod ollama;
mod program;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::container::safetensors::index::unsafe_path_reason;
use crate::container::{Container, recognise};
use crate::file::directory_of;

pub use error::LocateError;
pub use kept_error::{KeptError, OllamaError};
use list::{PROGRAMS, program_of};
use program::Program;

/// Most names in a refusal, which is for people to read.
const MAX_LISTED: usize = 40;

/// Where a checkpoint is.
#[derive(Clone, Debug)]
pub struct Location {
    /// What was found: a directory or a file.
    pub path: PathBuf,
    /// The format in which the model lies there.
    pub container: &'static dyn Container,
    /// The directory, or that of the file.
    pub directory: PathBuf,
    /// What to call the model before people.
    pub name: String,
}

/// Finds a checkpoint: a directory, a `.safetensors` file (that file only), an index, an APR file, a GGUF file (the first of
/// several that make one model), `org/name` or `org/name@revision` in the local Hub cache, or `ollama:NAME` or `lmstudio:NAME`
/// of a model that one of these programs keeps on this machine. Nothing is downloaded.
///
/// # Errors
/// [`LocateError`], which lists where it looked.
pub fn locate(model: &str) -> Result<Location, LocateError> {
    match program_of(model) {
        Some((program, name)) => kept_in(program, name, &(program.folders)()),
        None => locate_in(model, &hub_caches()),
    }
}

/// The program that keeps the model of this name, where it begins with the scheme of one: `Ollama` of `ollama:llama3.2`.
pub fn keeper(model: &str) -> Option<&'static str> {
    program_of(model).map(|(program, _)| program.called)
}

/// A model that another program keeps on this machine.
#[derive(Clone, Debug)]
pub struct KeptModel {
    /// What [`locate()`] finds it by: `ollama:NAME` or `lmstudio:NAME`.
    pub model: String,
    /// The program that keeps it.
    pub program: &'static str,
    /// Where it is, by the name that it has there.
    pub location: Location,
}

/// All models that other programs keep on this machine, by program and name; of what is in two folders, that which
/// [`locate()`] finds. What it does not find is left out, as a file of an unfinished download.
pub fn kept() -> Vec<KeptModel> {
    PROGRAMS.iter().flat_map(|program| kept_of(program, &(program.folders)())).collect()
}

/// Those of a program with these folders.
fn kept_of(program: &'static Program, folders: &[PathBuf]) -> Vec<KeptModel> {
    let names = folders.iter().flat_map(|folder| (program.names)(folder)).take(names::MAX_ENTRIES);
    let names: BTreeSet<String> = names.collect();
    let found = names.into_iter().filter_map(|name| {
        let location = kept_as(program, &name, folders).ok()??;
        let (model, program) = (format!("{}:{name}", program.scheme), program.called);
        Some(KeptModel { model, program, location })
    });
    found.collect()
}

/// Finds the model that a program keeps under that name in the first of these folders that has it; it keeps the name.
fn kept_as(
    program: &Program,
    name: &str,
    folders: &[PathBuf],
) -> Result<Option<Location>, LocateError> {
    for folder in folders {
        if let Some(path) = (program.find)(folder, name)? {
            let name = name.to_owned();
            return Ok(Some(Location { name: name.clone(), ..found(path, name)? }));
        }
    }
    Ok(None)
}

/// The same where it must be there.
///
/// # Errors
/// [`LocateError::NotKept`], which says where was looked and what is there, or [`LocateError::Kept`] for what is wrong with the
/// model there.
fn kept_in(program: &Program, name: &str, folders: &[PathBuf]) -> Result<Location, LocateError> {
    if let Some(location) = kept_as(program, name, folders)? {
        return Ok(location);
    }
    let names = folders.iter().flat_map(|folder| (program.names)(folder)).take(names::MAX_ENTRIES);
    let mut kept: Vec<String> = names.map(|name| format!("{}:{name}", program.scheme)).collect();
    kept.sort();
    kept.dedup();
    let more = kept.len().saturating_sub(MAX_LISTED);
    kept.truncate(MAX_LISTED);
    let (program, looked) = (program.called, folders.to_vec());
    Err(LocateError::NotKept { program, name: name.to_owned(), looked, kept, more })
}

/// The same of what no other program keeps, with the Hub caches to look in, in order.
///
/// # Errors
/// As [`locate`].
pub fn locate_in(model: &str, hub_caches: &[PathBuf]) -> Result<Location, LocateError> {
    let path = Path::new(model);
    if path.is_dir() {
        return if path.join("snapshots").is_dir() && !path.join("config.json").exists() {
            in_hub_folder(path, None, file_name(path))
        } else {
            found(path.into(), file_name(path))
        };
    }
    if path.is_file() {
        return found(path.into(), file_name(&directory_of(path)));
    }
    let mut looked = vec![path.to_owned()];
    let (repo, revision) = match model.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (model, None),
    };
    let folder = hub_folder(repo);
    // A name without an owner is more often a directory that was misspelt.
    let is_of_hub = folder.is_some() && repo.contains('/');
    if let Some(folder) = folder {
        for cache in hub_caches {
            let directory = cache.join(&folder);
            if directory.is_dir() {
                return in_hub_folder(&directory, revision, model.to_owned());
            }
            looked.push(directory);
        }
    }
    Err(LocateError::NotFound { model: model.to_owned(), looked, is_of_hub })
}

/// Where the Hub's tools keep models, most specific first; without repetition. The first is the one that is written to;
/// there is none only where the system knows no home.
pub fn hub_caches() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let in_cache = |cache: PathBuf| cache.join("huggingface").join("hub");
    let candidates = [
        variable("HF_HUB_CACHE"),
        variable("HF_HOME").map(|home| home.join("hub")),
        variable("XDG_CACHE_HOME").map(in_cache),
        std::env::home_dir().map(|home| in_cache(home.join(".cache"))),
    ];
    let mut caches: Vec<PathBuf> = Vec::new();
    for cache in candidates.into_iter().flatten() {
        if !caches.contains(&cache) {
            caches.push(cache);
        }
    }
    caches
}

/// What was found, if it is of a format that is read.
fn found(path: PathBuf, name: String) -> Result<Location, LocateError> {
    let Some(container) = recognise(&path) else {
        let found = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => "a file that does not begin as a GGUF file",
            Some("apr") => "a file that does not begin as an APR file of version 2",
            Some("bin" | "pt" | "pth") => "a pickled PyTorch file",
            _ => "this file",
        };
        return Err(LocateError::UnsupportedFile { path, found });
    };
    let name = container.model_name(&path).unwrap_or(name);
    Ok(Location { directory: directory_of(&path), path, container, name })
}

/// `models--org--name` for `org/name` (or `models--name`), if the text can be a model of the Hub.
pub fn hub_folder(model: &str) -> Option<String> {
    let parts: Vec<&str> = model.split('/').collect();
    let allowed = |part: &&str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !part.is_empty() && part.bytes().all(plain) && !part.starts_with('.')
    };
    (parts.len() <= 2 && parts.iter().all(allowed)).then(|| format!("models--{}", parts.join("--")))
}

/// The snapshot of a revision, or else the one that `refs/main` names, or else the newest. Its files may be links out of
/// it.
fn in_hub_folder(
    folder: &Path,
    revision: Option<&str>,
    name: String,
) -> Result<Location, LocateError> {
    let snapshots = folder.join("snapshots");
    let snapshot = |commit: &str| {
        let hexadecimal = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_hexdigit());
        hexadecimal.then(|| snapshots.join(commit)).filter(|path| path.is_dir())
    };
    let named = |revision: &str| {
        let path =
            unsafe_path_reason(revision).is_none().then(|| folder.join("refs").join(revision));
        let commit = path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        snapshot(commit.trim())
    };
    let newest = || {
        let entries = std::fs::read_dir(&snapshots).ok()?;
        let dated = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        dated.max_by_key(|path| (path.metadata().and_then(|m| m.modified()).ok(), path.clone()))
    };
    let directory = match revision {
        Some(revision) => named(revision).or_else(|| snapshot(revision)),
        None => named("main").or_else(newest),
    };
    let missing = || LocateError::NoSnapshot {
        path: folder.to_owned(),
        revision: revision.map(str::to_owned),
    };
    found(directory.ok_or_else(missing)?, name)
}

/// The last part of a path, also of `.` and `..`.
fn file_name(path: &Path) -> String {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    last(path)
        .or_else(|| path.canonicalize().ok().and_then(|whole| last(&whole)))
        .unwrap_or_else(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden_path;

    fn find(path: &Path) -> Result<Location, LocateError> {
        locate_in(path.to_str().unwrap(), &[])
    }

    #[test]
    fn finds_a_directory_a_file_and_an_index() {
        let golden = golden_path("llama-sharded");
        let location = find(&golden).unwrap();
        assert_eq!((&location.path, location.name.as_str()), (&golden, "llama-sharded"));
        let index = golden.join("model.safetensors.index.json");
        let location = find(&index).unwrap();
        assert_eq!(location.directory, golden);
        assert_eq!(location.path, index);
        assert_eq!(location.name, "llama-sharded");
        let file = golden_path("llama").join("model.safetensors");
        assert_eq!(find(&file).unwrap().path, file);
    }

    #[test]
    fn says_where_it_looked() {
        let cache = tempfile::tempdir().unwrap();
        let caches = [cache.path().join("a"), cache.path().join("b")];
        let error = locate_in("some/model", &caches).unwrap_err().to_string();
        for cache in caches {
            let folder = cache.join("models--some--model");
            assert!(error.contains(&folder.display().to_string()), "{error}");
        }
        assert!(error.contains("some/model"));
    }

    #[test]
    fn only_names_of_the_hub_are_looked_up_there() {
        for text in ["/etc", "../x", "a/b/c", "a/", "", ".hidden/x", "a b/c", "a\\b"] {
            assert_eq!(hub_folder(text), None, "{text}");
        }
        assert_eq!(hub_folder("Qwen/Qwen2.5-0.5B").unwrap(), "models--Qwen--Qwen2.5-0.5B");
        assert_eq!(hub_folder("gpt2").unwrap(), "models--gpt2");
    }

    #[test]
    fn refuses_files_of_other_kinds() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["model.gguf", "pytorch_model.bin", "notes.txt"] {
            let path = directory.path().join(name);
            std::fs::write(&path, "x").unwrap();
            assert!(matches!(find(&path), Err(LocateError::UnsupportedFile { .. })), "{name}");
        }
    }

    /// A Hub cache whose snapshots link into `blobs`, which lies outside them.
    #[cfg(unix)]
    fn hub_cache(commits: &[&str]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--org--tiny");
        for part in ["refs", "blobs"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        for entry in std::fs::read_dir(golden_path("llama-sharded")).unwrap().flatten() {
            std::fs::copy(entry.path(), folder.join("blobs").join(entry.file_name())).unwrap();
        }
        for commit in commits {
            let snapshot = folder.join("snapshots").join(commit);
            std::fs::create_dir_all(&snapshot).unwrap();
            for entry in std::fs::read_dir(folder.join("blobs")).unwrap().flatten() {
                let name = entry.file_name();
                let target = Path::new("../../blobs").join(&name);
                std::os::unix::fs::symlink(target, snapshot.join(name)).unwrap();
            }
        }
        cache
    }

    #[cfg(unix)]
    #[test]
    fn follows_the_hub_cache_through_its_links() {
        let cache = hub_cache(&["0a1b", "ffff"]);
        let folder = cache.path().join("models--org--tiny");
        std::fs::write(folder.join("refs/main"), "0a1b\n").unwrap();
        let missing = cache.path().join("no-such-cache");
        let caches = [missing, cache.path().to_owned()];
        let location = locate_in("org/tiny", &caches).unwrap();
        assert_eq!(location.name, "org/tiny");
        assert_eq!(location.directory, folder.join("snapshots/0a1b"));
        let checkpoint = crate::Checkpoint::open_at(location).unwrap();
        assert_eq!((checkpoint.files.len(), checkpoint.config.layers.len()), (6, 12));
        // The folder itself may be named, too.
        assert_eq!(find(&folder).unwrap().directory, folder.join("snapshots/0a1b"));
    }

    #[cfg(unix)]
    #[test]
    fn without_a_usable_ref_the_newest_snapshot_counts() {
        let cache = hub_cache(&["aaaa"]);
        let folder = cache.path().join("models--org--tiny");
        let caches = [cache.path().to_owned()];
        for main in [None, Some("bbbb"), Some("../../../etc"), Some("")] {
            if let Some(main) = main {
                std::fs::write(folder.join("refs/main"), main).unwrap();
            }
            let location = locate_in("org/tiny", &caches).unwrap();
            assert_eq!(location.directory, folder.join("snapshots/aaaa"), "{main:?}");
        }
        std::fs::remove_dir_all(folder.join("snapshots")).unwrap();
        let error = locate_in("org/tiny", &caches).unwrap_err();
        assert!(matches!(error, LocateError::NoSnapshot { .. }), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_revision_is_the_one_that_was_said_or_none() {
        let cache = hub_cache(&["0a1b", "ffff"]);
        let folder = cache.path().join("models--org--tiny");
        std::fs::create_dir_all(folder.join("refs/pr")).unwrap();
        std::fs::write(folder.join("refs/main"), "0a1b").unwrap();
        std::fs::write(folder.join("refs/pr/1"), "ffff").unwrap();
        let caches = [cache.path().to_owned()];
        for (model, commit) in [
            ("org/tiny", "0a1b"),
            ("org/tiny@main", "0a1b"),
            ("org/tiny@pr/1", "ffff"),
            ("org/tiny@ffff", "ffff"),
        ] {
            let location = locate_in(model, &caches).unwrap();
            assert_eq!(location.directory, folder.join("snapshots").join(commit), "{model}");
        }
        for model in ["org/tiny@v2", "org/tiny@", "org/tiny@../refs/main", "org/tiny@/etc"] {
            let error = locate_in(model, &caches).unwrap_err();
            assert!(matches!(error, LocateError::NoSnapshot { .. }), "{model}: {error}");
        }
        let hint = |model| locate_in(model, &[]).unwrap_err().to_string();
        assert!(hint("org/other@v1").ends_with("`cake-master pull org/other@v1` downloads it"));
        assert!(!hint("other").contains("pull") && !hint("a/b/c").contains("pull"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_a_missing_file() {
        let cache = hub_cache(&["aaaa"]);
        let blobs = cache.path().join("models--org--tiny/blobs");
        std::fs::remove_file(blobs.join("model-00003-of-00006.safetensors")).unwrap();
        let location = locate_in("org/tiny", &[cache.path().to_owned()]).unwrap();
        let error = crate::Checkpoint::open_at(location).unwrap_err().to_string();
        assert!(error.contains("1 of 6 checkpoint files are missing"), "{error}");
        assert!(error.contains("model-00003-of-00006.safetensors"), "{error}");
    }
}
