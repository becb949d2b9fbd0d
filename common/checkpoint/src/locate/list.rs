//! The list of programs that keep models.

use std::path::PathBuf;

use super::lm_studio::LM_STUDIO;
use super::names::MAX_ENTRIES;
use super::ollama::OLLAMA;
use super::program::Program;

pub(super) static PROGRAMS: &[Program] = &[OLLAMA, LM_STUDIO];

/// The program that `model` begins with the scheme of, and the name that follows.
pub(super) fn program_of(model: &str) -> Option<(&'static Program, &str)> {
    let (scheme, name) = model.split_once(':')?;
    let program = PROGRAMS.iter().find(|program| program.scheme == scheme)?;
    Some((program, name))
}

/// A model that another program keeps on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptModel {
    /// What [`locate()`](super::locate()) finds it by: `ollama:NAME` or `lmstudio:NAME`.
    pub model: String,
    /// The program that keeps it.
    pub program: &'static str,
    /// Its file or directory.
    pub path: PathBuf,
}

/// All models that other programs keep on this machine, by program and name; of what is in two folders, that which
/// [`locate()`](super::locate()) finds. Those that cannot be found by their names, as half of them is missing, are left out.
pub fn kept() -> Vec<KeptModel> {
    let of = |program: &'static Program| kept_of(program, &(program.folders)());
    PROGRAMS.iter().flat_map(of).collect()
}

/// Those of a program with these folders.
pub(super) fn kept_of(program: &Program, folders: &[PathBuf]) -> Vec<KeptModel> {
    let mut names: Vec<String> =
        folders.iter().flat_map(|folder| (program.names)(folder)).take(MAX_ENTRIES).collect();
    names.sort();
    names.dedup();
    let find = |name: String| {
        let found = folders.iter().find_map(|folder| (program.find)(folder, &name).transpose());
        let model = format!("{}:{name}", program.scheme);
        Some(KeptModel { model, program: program.called, path: found?.ok()? })
    };
    names.into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;

    use super::*;

    #[test]
    fn what_is_in_two_folders_is_kept_once() {
        let home = tempfile::tempdir().unwrap();
        let folders = ["new", "old", "none"].map(|name| home.path().join(name));
        for model in ["new/someone/B", "new/someone/A", "old/other/C", "old/someone/A"] {
            create_dir_all(home.path().join(model)).unwrap();
        }
        let kept = kept_of(&LM_STUDIO, &folders);
        let found: Vec<(&str, PathBuf)> =
            kept.iter().map(|it| (it.model.as_str(), it.path.clone())).collect();
        let expected = [
            ("lmstudio:other/C", "old/other/C"),
            ("lmstudio:someone/A", "new/someone/A"),
            ("lmstudio:someone/B", "new/someone/B"),
        ];
        assert_eq!(found, expected.map(|(model, path)| (model, home.path().join(path))));
        assert!(kept.iter().all(|it| it.program == "LM Studio"));
    }

    #[test]
    fn only_the_schemes_of_the_list_are_schemes() {
        let of = |model| program_of(model).map(|(program, name)| (program.called, name));
        assert_eq!(of("ollama:llama3.2:1b"), Some(("Ollama", "llama3.2:1b")));
        assert_eq!(of("lmstudio:a/b"), Some(("LM Studio", "a/b")));
        for model in ["ollama", "Ollama:x", "./ollama:x", "C:\\models", "org/name", "hub:x"] {
            assert_eq!(of(model), None, "{model}");
        }
    }
}
