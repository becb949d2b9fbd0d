//! Names: of what a person wants, of files and of revisions.

use std::fmt;
use std::str::FromStr;

use cake_checkpoint::container::safetensors::index::unsafe_path_reason;
use cake_checkpoint::hub_folder;

use crate::error::Error;

/// What a revision is when nobody says.
const MAIN: &str = "main";
/// Longest name of a revision or of a file.
const MAX_NAME_BYTES: usize = 512;
/// Longest part of it: file systems take no more.
const MAX_PART_BYTES: usize = 255;

/// A model of the Hub: `ORG/NAME` or `ORG/NAME@REVISION`.
///
/// ```
/// use cake_hub::Wanted;
///
/// let wanted: Wanted = "Qwen/Qwen3-0.6B@v1".parse().expect("a name");
/// assert_eq!((wanted.repo(), wanted.revision()), ("Qwen/Qwen3-0.6B", "v1"));
/// let wanted: Wanted = "Qwen/Qwen3-0.6B".parse().expect("a name");
/// assert_eq!(wanted.revision(), "main");
/// // Nothing that would leave the folder of a cache is a name.
/// assert!("../secrets".parse::<Wanted>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// `org/name`, or a name alone.
    pub(crate) repo: String,
    /// A branch, a tag or a commit, if one was said.
    pub(crate) revision: Option<String>,
}

impl Wanted {
    /// `org/name`, or a name alone.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The revision, or the one that is meant when nobody says.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// The model's folder in a cache.
    pub(crate) fn folder(&self) -> String {
        hub_folder(&self.repo).expect("checked when it was parsed")
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (text, None),
        };
        let odd = |reason| Error::Name { name: text.to_owned(), reason };
        if hub_folder(repo).is_none() {
            return Err(odd("expected ORG/NAME or ORG/NAME@REVISION"));
        }
        if let Some(reason) = revision.and_then(unsafe_name) {
            return Err(odd(reason));
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.map(str::to_owned) })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

/// Why a name from the Hub, or of a revision, must not become a path in the cache; `None` when it is safe.
pub(crate) fn unsafe_name(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME_BYTES {
        return Some("it is longer than 512 bytes");
    }
    if let Some(reason) = unsafe_path_reason(name) {
        return Some(reason);
    }
    // How deep a file lies says how its link leads out again.
    if name.split('/').any(|part| part.is_empty() || part == ".") {
        return Some("a part of it is empty");
    }
    if name.split('/').any(|part| part.len() > MAX_PART_BYTES) {
        return Some("a part of it is longer than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    name.contains('\\').then_some("it has a backslash")
}

/// Whether a text is the name of a commit: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_with_or_without_a_revision() {
        let wanted: Wanted = "org/name".parse().unwrap();
        assert_eq!((wanted.repo.as_str(), wanted.revision()), ("org/name", "main"));
        let wanted: Wanted = "org/name@refs/pr/1".parse().unwrap();
        assert_eq!(
            (wanted.folder().as_str(), wanted.revision()),
            ("models--org--name", "refs/pr/1")
        );
        assert_eq!(wanted.to_string(), "org/name@refs/pr/1");
        for text in
            ["", "a/b/c", "../x", "/etc", "a b/c", "org/name@", "org/name@../x", "org/name@/x"]
        {
            assert!(text.parse::<Wanted>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["", "../x", "a/../b", "/x", "\\x", "C:x", "a\0b", "a//b", "./a", "a\\b"] {
            assert!(unsafe_name(name).is_some(), "{name:?}");
        }
        for name in ["a\u{1b}[2Jb", "a\nb", "a\u{9b}b", "a\u{7f}b"] {
            assert!(unsafe_name(name).is_some(), "{name:?}");
        }
        assert!(unsafe_name(&"x".repeat(256)).is_some());
        assert_eq!(unsafe_name(&"x".repeat(255)), None);
        for name in ["config.json", "sub/model.safetensors", ".gitattributes", "a..b"] {
            assert_eq!(unsafe_name(name), None, "{name:?}");
        }
    }
}
