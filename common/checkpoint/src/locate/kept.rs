//! Models that other programs keep on this machine, under those programs' names.

use std::fs::read_dir;
use std::path::{Path, PathBuf};

use super::{LocateError, Location, lm_studio, ollama};

/// Most entries that are looked at in one folder, and most names that are listed: a refusal is for people to read.
const MAX_ENTRIES: usize = 10_000;
/// Most names in a refusal.
const MAX_LISTED: usize = 40;
/// Longest part of a name: file systems take no more.
const MAX_PART_BYTES: usize = 255;

/// A program that keeps models in folders of its own. One more is a line in [`PROGRAMS`], and a file beside this one.
pub(super) struct Program {
    /// What precedes the model's name and a colon where a model is meant that this program keeps.
    pub(super) scheme: &'static str,
    /// What people call it.
    pub(super) called: &'static str,
    /// Its folders on this machine, in the order in which they are looked into.
    pub(super) folders: fn() -> Vec<PathBuf>,
    /// Where in one folder the model of that name is; `None` if it is not.
    pub(super) find: fn(folder: &Path, name: &str) -> Result<Option<Location>, LocateError>,
    /// The names of all models in a folder.
    pub(super) names: fn(folder: &Path) -> Vec<String>,
}

pub(super) static PROGRAMS: &[Program] = &[ollama::OLLAMA, lm_studio::LM_STUDIO];

impl Program {
    /// The program that `model` begins with the scheme of, and the name that follows.
    pub(super) fn of(model: &str) -> Option<(&'static Program, &str)> {
        let (scheme, name) = model.split_once(':')?;
        let program = PROGRAMS.iter().find(|program| program.scheme == scheme)?;
        Some((program, name))
    }

    /// Finds the model of that name in the first of these folders that has it.
    ///
    /// # Errors
    /// [`LocateError::NotKept`], which says where was looked and what is there, or what is wrong with the model there.
    pub(super) fn locate(&self, name: &str, folders: &[PathBuf]) -> Result<Location, LocateError> {
        for folder in folders {
            if let Some(location) = (self.find)(folder, name)? {
                return Ok(location);
            }
        }
        let names = folders.iter().flat_map(|folder| (self.names)(folder));
        let mut kept: Vec<String> =
            names.map(|name| format!("{}:{name}", self.scheme)).take(MAX_ENTRIES).collect();
        kept.sort();
        kept.dedup();
        let more = kept.len().saturating_sub(MAX_LISTED);
        kept.truncate(MAX_LISTED);
        let (program, looked) = (self.called, folders.to_vec());
        Err(LocateError::NotKept { program, name: name.to_owned(), looked, kept, more })
    }
}

/// Whether a part of a name can be the name of one file or folder, and nothing else: no way up, no separator, nothing hidden.
pub(super) fn is_plain(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+' | b' ');
    let begins = part.bytes().next().is_some_and(|first| !matches!(first, b'.' | b' '));
    begins && part.len() <= MAX_PART_BYTES && part.bytes().all(plain)
}

/// The names in a folder that are plain, ascending; none where there is no folder.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_plain(name)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_one_step_down() {
        for part in ["llama3.2", "Qwen3-8B-GGUF", "a b.gguf", "x_y+z"] {
            assert!(is_plain(part), "{part}");
        }
        let long = "x".repeat(MAX_PART_BYTES + 1);
        for part in ["", ".", "..", ".hidden", " x", "a/b", "a\\b", "a\0b", "C:x", "ä", &long] {
            assert!(!is_plain(part), "{part:?}");
        }
    }

    #[test]
    fn only_the_schemes_of_the_list_are_schemes() {
        let of = |model| Program::of(model).map(|(program, name)| (program.called, name));
        assert_eq!(of("ollama:llama3.2:1b"), Some(("Ollama", "llama3.2:1b")));
        assert_eq!(of("lmstudio:a/b"), Some(("LM Studio", "a/b")));
        for model in ["ollama", "Ollama:x", "./ollama:x", "C:\\models", "org/name", "hub:x"] {
            assert_eq!(of(model), None, "{model}");
        }
    }
}
