//! The files of a model: one, or several parts.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::header::Head;
use super::limits::MAGIC;
use super::value::Metadata;
use crate::error::Error;
use crate::file::read_first;

/// What a file of this format ends in, by which it is found in a directory.
const ENDING: &str = ".gguf";
/// How names begin of files for something else than text, beside those of a model.
const PROJECTOR: &str = "mmproj";

/// One file of a model, of which the header was read.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) head: Head,
    pub(super) file: File,
    pub(super) bytes: u64,
}

/// Whether a file begins as one of this format.
pub(super) fn is_one(path: &Path) -> bool {
    path.is_file() && read_first(path, MAGIC.len() as u64).is_ok_and(|first| first == MAGIC)
}

/// Whether a directory has files of this format and none that another takes.
pub(super) fn has_some(directory: &Path) -> bool {
    let names = names_in(directory);
    let is_other = |name: &String| name.ends_with(".safetensors") || name.ends_with(".index.json");
    names.iter().any(|name| is_model(name)) && !names.iter().any(is_other)
}

/// What a model is called by the name of its file: that of a part but for its number.
pub(super) fn model_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    if let Some(part) = Part::of(&name) {
        return Some(part.model.to_owned());
    }
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned())
}

/// Opens the file at `path`, or the model in that directory, with all its parts.
///
/// # Errors
/// [`Error::Gguf`] for a file that is wrong, or a part that is missing; [`Error::Io`].
pub(super) fn open(path: &Path) -> Result<Vec<Opened>, Error> {
    let first = match path.is_dir() {
        true => in_directory(path)?,
        false => path.to_owned(),
    };
    let opened = Opened::read(first)?;
    let split = Split::of(&opened)?;
    if split.number >= split.count {
        let Split { number, count, .. } = split;
        return Err(opened.wrong(GgufError::NoSuchPart { number, count }));
    }
    if split.number > 0 {
        let Split { number, count, .. } = split;
        return Err(opened.wrong(GgufError::NotFirst { number, count }));
    }
    let mut all = vec![opened];
    for number in 1..split.count {
        let next = next_part(&all[0], &split, number)?;
        all.push(next);
    }
    let found = all.iter().map(|opened| opened.head.tensors.len() as u64).sum();
    match split.tensors {
        Some(expected) if expected != found => {
            Err(all[0].wrong(GgufError::TensorCount { expected, found }))
        }
        _ => Ok(all),
    }
}

impl Opened {
    fn read(path: PathBuf) -> Result<Opened, Error> {
        let (head, file, bytes) = Head::read(&path)?;
        Ok(Opened { path, head, file, bytes })
    }

    /// An error of this file.
    pub(super) fn wrong(&self, cause: impl Into<GgufError>) -> Error {
        Error::Gguf { path: self.path.clone(), cause: cause.into() }
    }
}

/// What a file says of the parts of its model.
struct Split {
    /// Its own number, from 0 on.
    number: u64,
    count: u64,
    /// Tensors of all parts.
    tensors: Option<u64>,
}

impl Split {
    fn of(opened: &Opened) -> Result<Split, Error> {
        let get = |key: &str| {
            let metadata: &Metadata = &opened.head.metadata;
            metadata.unsigned(key).map_err(|cause| opened.wrong(cause))
        };
        let (number, count) = (get("split.no")?.unwrap_or(0), get("split.count")?);
        // Writers say 0 of a model in one file, too.
        let count = count.unwrap_or(1).max(1);
        Ok(Split { number, count, tensors: get("split.tensors.count")? })
    }
}

/// Opens the part of that number beside the first one.
fn next_part(first: &Opened, split: &Split, number: u64) -> Result<Opened, Error> {
    let count = split.count;
    let name = first.path.file_name().unwrap_or_default().to_string_lossy();
    let own = Part::of(&name).filter(|part| (part.number, part.count) == (1, count));
    let model = own.ok_or_else(|| first.wrong(GgufError::PartName { count }))?.model;
    let file = format!("{model}-{:05}-of-{count:05}{ENDING}", number + 1);
    let path = first.path.with_file_name(&file);
    if !path.exists() {
        return Err(first.wrong(GgufError::MissingPart { number, count, file }));
    }
    let opened = Opened::read(path)?;
    let found = Split::of(&opened)?;
    if (found.number, found.count) == (number, count) {
        return Ok(opened);
    }
    let (found, found_count) = (found.number, found.count);
    Err(opened.wrong(GgufError::OtherPart { number, count, found, found_count }))
}

/// The files of models in a directory, ascending; of those in several parts the first ones'.
pub(crate) fn models_in(directory: &Path) -> Vec<String> {
    parts_in(directory).1
}

/// Of the files in a directory those of later parts, and all others.
fn parts_in(directory: &Path) -> (Vec<String>, Vec<String>) {
    let names = names_in(directory).into_iter().filter(|name| is_model(name));
    let is_later = |name: &String| Part::of(name).is_some_and(|part| part.number > 1);
    names.partition(is_later)
}

/// The only model's file in a directory, or its first part's.
fn in_directory(directory: &Path) -> Result<PathBuf, Error> {
    // Of several parts the first one speaks for all.
    let (later, mut firsts) = parts_in(directory);
    match (firsts.len(), later.first()) {
        (1, _) => Ok(directory.join(firsts.remove(0))),
        (0, Some(later)) => Ok(directory.join(later)), // Which says that it is not the first.
        _ => {
            let cause = GgufError::SeveralModels { files: firsts };
            Err(Error::Gguf { path: directory.into(), cause })
        }
    }
}

/// The names in a directory, ascending.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether a file of that name has weights of a model of text.
fn is_model(name: &str) -> bool {
    name.ends_with(ENDING) && !name.starts_with(PROJECTOR)
}

/// What the name of a part says.
struct Part<'a> {
    /// What precedes its number.
    model: &'a str,
    /// Its number, from 1 on.
    number: u64,
    /// How many there are.
    count: u64,
}

impl Part<'_> {
    fn of(name: &str) -> Option<Part<'_>> {
        let (rest, count) = name.strip_suffix(ENDING)?.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        let read = |digits: &str| {
            let is_one = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_one.then(|| digits.parse().ok()).flatten()
        };
        Some(Part { model, number: read(number)?, count: read(count)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_in_parts_are_called_as_their_parts_are() {
        for (file, name) in [
            ("a/big-00001-of-00012.gguf", "big"),
            ("big-Q4_K_M.gguf", "big-Q4_K_M"),
            ("big-1-of-2.gguf", "big-1-of-2"),
            ("big-00001-of-00002", "big-00001-of-00002"),
        ] {
            assert_eq!(model_name(Path::new(file)).unwrap(), name);
        }
    }
}
