//! Models that LM Studio keeps: a folder `PUBLISHER/REPO` for each, of GGUF files or as the Hub has it.

use std::path::{Path, PathBuf};

use super::kept_error::KeptError;
use super::names::{is_plain, names_in};
use super::program::Program;
use crate::container::gguf::models_in;
use crate::container::safetensors::CONFIG;
use crate::file::read_bounded;

pub(super) const LM_STUDIO: Program =
    Program { scheme: "lmstudio", called: "LM Studio", folders, find, names };

/// The file in a home directory that says where LM Studio has its own, and the longest one read.
const POINTER: &str = ".lmstudio-home-pointer";
const MAX_POINTER_BYTES: u64 = 4096;

/// Where LM Studio keeps models: where its pointer leads, its folder now, that of earlier versions.
fn folders() -> Vec<PathBuf> {
    std::env::home_dir().map_or_else(Vec::new, |home| folders_of(&home))
}

fn folders_of(home: &Path) -> Vec<PathBuf> {
    let said = read_bounded(&home.join(POINTER), MAX_POINTER_BYTES).ok().and_then(Result::ok);
    let said = said.and_then(|said| String::from_utf8(said).ok());
    let said = said.map(|said| PathBuf::from(said.trim())).filter(|path| path.is_absolute());
    let homes = [said, Some(home.join(".lmstudio")), Some(home.join(".cache/lm-studio"))];
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in homes.into_iter().flatten().map(|home| home.join("models")) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// The model `REPO`, `PUBLISHER/REPO` or `PUBLISHER/REPO/FILE` in one of its folders; of several files one must be named.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>, KeptError> {
    let parts: Vec<&str> = name.split('/').collect();
    if !parts.iter().all(|part| is_plain(part)) {
        return Ok(None);
    }
    let path = match parts[..] {
        [repo] => match &publishers_of(folder, repo)[..] {
            [] => return Ok(None),
            [publisher] => folder.join(publisher).join(repo),
            several => {
                let names = several.iter().map(|it| format!("lmstudio:{it}/{repo}")).collect();
                return Err(KeptError::Several { name: name.to_owned(), names });
            }
        },
        [_, _] | [_, _, _] => folder.join(name),
        _ => return Ok(None),
    };
    Ok(path.exists().then_some(path))
}

/// Those that have a model of that name.
fn publishers_of(folder: &Path, repo: &str) -> Vec<String> {
    let mut publishers = names_in(folder);
    publishers.retain(|publisher| folder.join(publisher).join(repo).is_dir());
    publishers
}

/// The names of all models of a folder, `PUBLISHER/REPO`, or `PUBLISHER/REPO/FILE` where there are several.
fn names(folder: &Path) -> Vec<String> {
    let in_repo = |name: String| match &models_in(&folder.join(&name))[..] {
        [] if !folder.join(&name).join(CONFIG).exists() => Vec::new(),
        files @ [_, _, ..] => files.iter().map(|file| format!("{name}/{file}")).collect(),
        _ => vec![name],
    };
    let of = |publisher: String| {
        let repos = names_in(&folder.join(&publisher)).into_iter();
        let repos = repos.filter(|repo| folder.join(&publisher).join(repo).is_dir());
        repos.map(|repo| format!("{publisher}/{repo}")).flat_map(in_repo).collect::<Vec<_>>()
    };
    names_in(folder).into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::locate::{KeptModel, LocateError, Location, kept_in, kept_of};
    use crate::testing::{golden_gguf_path, golden_path};

    /// A folder as LM Studio has it: a model of one GGUF file, one of two, and one as the Hub has it.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, file) in [
            ("someone/Tiny-GGUF", "Tiny-Q4_0.gguf"),
            ("someone/Two-GGUF", "Two-Q4_0.gguf"),
            ("someone/Two-GGUF", "Two-Q8_0.gguf"),
            ("other/Two-GGUF", "Two-Q4_0.gguf"),
        ] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            let model = golden_gguf_path("llama-q4_0").join("model.gguf");
            fs::copy(model, folder.path().join(name).join(file)).unwrap();
        }
        let mlx = folder.path().join("mlx-community/Tiny");
        fs::create_dir_all(&mlx).unwrap();
        for entry in fs::read_dir(golden_path("llama")).unwrap().flatten() {
            fs::copy(entry.path(), mlx.join(entry.file_name())).unwrap();
        }
        folder
    }

    fn locate(folder: &Path, name: &str) -> Result<Location, LocateError> {
        kept_in(&LM_STUDIO, name, &[folder.join("no-such-folder"), folder.to_owned()])
    }

    #[test]
    fn a_model_is_named_by_its_folder_with_or_without_its_publisher() {
        let folder = folder();
        for name in [
            "someone/Tiny-GGUF",
            "Tiny-GGUF",
            "someone/Tiny-GGUF/Tiny-Q4_0.gguf",
            "someone/Two-GGUF/Two-Q8_0.gguf",
            "other/Two-GGUF",
            "mlx-community/Tiny",
            "Tiny",
        ] {
            let location = locate(folder.path(), name).unwrap();
            assert_eq!(location.name, name);
            crate::Checkpoint::open_at(location).unwrap();
        }
    }

    #[test]
    fn of_several_one_must_be_named() {
        let folder = folder();
        let error = locate(folder.path(), "Two-GGUF").unwrap_err().to_string();
        assert!(error.contains("lmstudio:other/Two-GGUF, lmstudio:someone/Two-GGUF"), "{error}");
        let location = locate(folder.path(), "someone/Two-GGUF").unwrap();
        let error = crate::Checkpoint::open_at(location).unwrap_err().to_string();
        assert!(error.contains("Two-Q4_0.gguf, Two-Q8_0.gguf"), "{error}");
    }

    #[test]
    fn all_that_can_be_found_are_listed_and_each_once() {
        let folders = [folder(), folder()];
        for name in ["someone/Empty", "someone/Notes"] {
            fs::create_dir_all(folders[0].path().join(name)).unwrap();
        }
        fs::write(folders[0].path().join("someone/Notes/notes.txt"), "x").unwrap();
        let own = folders[1].path().join("own/Tiny-GGUF");
        fs::create_dir_all(&own).unwrap();
        fs::copy(golden_gguf_path("llama-q4_0").join("model.gguf"), own.join("a.gguf")).unwrap();
        let paths = [0, 1].map(|it: usize| folders[it].path().to_owned());
        let kept = kept_of(&LM_STUDIO, &paths);
        let models: Vec<&str> = kept.iter().map(|it| it.model.as_str()).collect();
        let expected = [
            "lmstudio:mlx-community/Tiny",
            "lmstudio:other/Two-GGUF",
            "lmstudio:own/Tiny-GGUF",
            "lmstudio:someone/Tiny-GGUF",
            "lmstudio:someone/Two-GGUF/Two-Q4_0.gguf",
            "lmstudio:someone/Two-GGUF/Two-Q8_0.gguf",
        ];
        assert_eq!(models, expected);
        for KeptModel { model, program, location } in kept {
            let folder = &paths[usize::from(model.ends_with("own/Tiny-GGUF"))];
            assert!(location.path.starts_with(folder), "{model}: the first that has it");
            assert_eq!((program, format!("lmstudio:{}", location.name)), ("LM Studio", model));
            crate::Checkpoint::open_at(location).unwrap();
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_where_was_looked_and_what_is_there() {
        let folder = folder();
        fs::write(folder.path().join("secret"), "x").unwrap();
        for name in
            ["Tiny-Q4", "", "someone", "..", "someone/..", "../x", "/etc/passwd", "someone/a/b/c"]
        {
            let error = locate(folder.path(), name).unwrap_err().to_string();
            assert!(error.contains(&format!("LM Studio keeps no model {name:?}")), "{error}");
            assert!(error.contains(&folder.path().display().to_string()), "{error}");
            assert!(
                error.contains("lmstudio:mlx-community/Tiny, lmstudio:other/Two-GGUF"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_pointer_in_a_home_says_where_to_look_first() {
        let home = tempfile::tempdir().unwrap();
        let usual =
            [home.path().join(".lmstudio/models"), home.path().join(".cache/lm-studio/models")];
        assert_eq!(folders_of(home.path()), usual);
        for (said, first) in
            [("/data/lm\n", Some("/data/lm/models")), ("relative", None), ("", None)]
        {
            fs::write(home.path().join(POINTER), said).unwrap();
            let first = first.map(PathBuf::from);
            let expected: Vec<PathBuf> = first.into_iter().chain(usual.clone()).collect();
            assert_eq!(folders_of(home.path()), expected, "{said:?}");
        }
    }
}
