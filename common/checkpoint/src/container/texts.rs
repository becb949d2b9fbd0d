//! The text side of a model: tokenizer, chat template, defaults for generation.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::file::read_bounded;

/// The texts that come with a model, each under the name that its file has on the Hub: `tokenizer.json`,
/// `chat_template.jinja`, `generation_config.json` and so on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextFiles {
    /// The files of a directory.
    Directory(PathBuf),
    /// What one file has inside.
    Inside {
        /// That file; sentences of errors name it.
        file: PathBuf,
        /// The texts by name; a name may have folders, with `/`.
        texts: BTreeMap<String, Vec<u8>>,
    },
}

impl TextFiles {
    /// Reads the text of that name, up to `limit_bytes`; `Err` holds its length when there is more.
    ///
    /// # Errors
    /// `NotFound` if there is none; else what the system says.
    pub fn read(&self, name: &str, limit_bytes: u64) -> io::Result<Result<Cow<'_, [u8]>, u64>> {
        match self {
            TextFiles::Directory(directory) => {
                Ok(read_bounded(&directory.join(name), limit_bytes)?.map(Cow::Owned))
            }
            TextFiles::Inside { texts, .. } => {
                let text = texts.get(name).ok_or(io::ErrorKind::NotFound)?;
                let bytes = text.len() as u64;
                Ok(if bytes > limit_bytes { Err(bytes) } else { Ok(Cow::Borrowed(text)) })
            }
        }
    }

    /// Whether there is a text of that name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            TextFiles::Directory(directory) => directory.join(name).exists(),
            TextFiles::Inside { texts, .. } => texts.contains_key(name),
        }
    }

    /// The names in a folder, without it, ascending; none if there is no such folder.
    pub fn names_in(&self, folder: &str) -> Vec<String> {
        match self {
            TextFiles::Directory(directory) => {
                let entries = std::fs::read_dir(directory.join(folder)).into_iter().flatten();
                let names = entries.flatten().map(|entry| entry.file_name().into_string());
                let mut names: Vec<String> = names.filter_map(Result::ok).collect();
                names.sort();
                names
            }
            TextFiles::Inside { texts, .. } => {
                let inside =
                    |name: &String| Some(name.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
                texts.keys().filter_map(inside).filter(|name| !name.contains('/')).collect()
            }
        }
    }

    /// Where they are, as sentences name it.
    pub fn place(&self) -> &Path {
        match self {
            TextFiles::Directory(path) | TextFiles::Inside { file: path, .. } => path,
        }
    }

    /// What sentences call the text of that name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_same_in_a_directory_and_inside_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = [("b.json", "12345"), ("more/z.jinja", "z"), ("more/a.jinja", "a")];
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let texts = files.map(|(name, text)| (name.to_owned(), text.into())).into();
        let inside = TextFiles::Inside { file: "model.one".into(), texts };
        for texts in [TextFiles::Directory(directory.path().to_owned()), inside] {
            assert_eq!(texts.read("b.json", 5).unwrap().unwrap(), &b"12345"[..]);
            assert_eq!(texts.read("b.json", 4).unwrap(), Err(5));
            assert_eq!(texts.read("a.json", 5).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(texts.has("b.json") && texts.has("more/a.jinja") && !texts.has("a.json"));
            assert_eq!(texts.names_in("more"), ["a.jinja", "z.jinja"]);
            assert_eq!(texts.names_in("less"), [""; 0]);
            assert!(texts.path("b.json").starts_with(texts.place()));
        }
    }
}
