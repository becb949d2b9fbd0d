//! The crate's error.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use cake_checkpoint::LayerRange;
use cake_checkpoint::container::safetensors::index::IndexError;
use cake_checkpoint::units::format_bytes;

/// Most characters of what a hub says that people are shown.
const MOST_SAID: usize = 500;

/// Why a model could not be brought, listed or removed. Its text is a whole sentence, whatever a hub says.
/// Names of files were checked where they came in; other words of a hub's go through `said` here.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Error {
    #[error("no name of a model or of its revision: {name:?}: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("no pattern for --include: {pattern:?}: {cause}")]
    Pattern { pattern: String, cause: glob::PatternError },
    #[error("no address of a hub: {endpoint:?}: expected https://HOST or http://HOST")]
    Endpoint { endpoint: String },
    #[error("there is no cache to write to: set HF_HOME to a directory")]
    NoCache,
    #[error("cannot use the certificates of {}: {cause}", path.display())]
    Certificates { path: PathBuf, cause: Box<ureq::Error> },
    /// The hub does not let us in.
    #[error(
        "{repo} is gated, private or not there: the hub answered {status}. {}",
        access(page, token)
    )]
    Closed { repo: String, page: String, status: u16, token: TokenUsed },
    #[error("the hub has no {what} {name:?}{place}: it answered 404")]
    NotFound { what: &'static str, name: String, place: String },
    #[error("{url} answered {status}, which is not understood here")]
    Status { url: String, status: u16 },
    #[error("{url} leads to {:?}: {reason}", said(location))]
    Redirect { url: String, location: String, reason: &'static str },
    #[error("{url} cannot be reached: {cause} (tried {tries} times)")]
    Unreachable { url: String, tries: u32, cause: Cause },
    #[error("the hub's answer about {repo} cannot be used: {}", said(cause))]
    Answer { repo: String, cause: AnswerError },
    #[error("{file}: the hub said {}, the server sends {} ({expected} and {found} bytes)", format_bytes(*expected), format_bytes(*found))]
    Size { file: String, expected: u64, found: u64 },
    #[error("{file}: the server sends bytes from {found} on, asked for from {expected} on")]
    WrongRange { file: String, expected: u64, found: u64 },
    #[error(
        "{file}: the server sends a web page instead of the file; is there a page to log in to on this network?"
    )]
    WebPage { file: String },
    #[error(
        "{file}: there is a Git LFS pointer (\"version https://git-lfs…\") in place of the file; whoever put the model there did not put its weights there"
    )]
    LfsPointer { file: String },
    #[error(
        "{file}: what came is not what the hub has: expected {kind} {expected}, found {found}; it was deleted, the same command fetches it again"
    )]
    WrongHash { file: String, kind: &'static str, expected: String, found: String },
    #[error("no room for {repo} in {}: {} more are needed there (and {} to spare) and {} are free", path.display(), format_bytes(*needed), format_bytes(cake_platform::DISK_RESERVE), format_bytes(*free))]
    NoRoom { repo: String, path: PathBuf, needed: u64, free: u64 },
    #[error("another process is fetching {file} of this model ({})", path.display())]
    Busy { file: String, path: PathBuf },
    #[error("another process is {doing} files of {repo} ({}): try again when it has ended", path.display())]
    Held { doing: &'static str, repo: String, path: PathBuf },
    #[error(
        "{file} was there and is not any more: another program deleted it; the same command fetches it again"
    )]
    Gone { file: String },
    #[error("{repo} has no file that fits {patterns:?}; it has {there}")]
    NothingChosen { repo: String, patterns: Vec<String>, there: String },
    #[error(
        "{repo} has no safetensors files at its top; it has {there}; --include GLOB chooses by name"
    )]
    NoWeights { repo: String, there: String },
    #[error(
        "{repo} has no index of several files, so that layers cannot be fetched by themselves; leave out --only-layers"
    )]
    NoIndex { repo: String },
    #[error("the index of {repo} cannot be used: {}", said(cause))]
    Index { repo: String, cause: IndexError },
    #[error("{repo} has no tensor of layers {layers}; it has layers 0..{count}")]
    NoLayers { repo: String, layers: LayerRange, count: usize },
    #[error("{repo} lacks {:?}, which its index names", said(file))]
    FileMissing { repo: String, file: String },
    #[error("stopped with {} of {} there; the same command goes on where this one stopped", format_bytes(*done), format_bytes(*total))]
    Stopped { done: u64, total: u64 },
    #[error("{wanted} is not in the cache: looked for {}", paths(looked))]
    NotCached { wanted: String, looked: Vec<PathBuf> },
    #[error("{} is a link out of the cache, which is not followed: remove it by hand", path.display())]
    Link { path: PathBuf },
    #[error("cannot {action} {}: {cause}", path.display())]
    Io { action: &'static str, path: PathBuf, cause: io::Error },
}

/// Why one request failed that may be made again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Cause {
    #[error("{}", said(.0))]
    Request(Box<ureq::Error>),
    #[error("the connection broke off: {}", said(.0))]
    Read(io::Error),
    #[error("the connection ended {missing} bytes early")]
    CutShort { missing: u64 },
    #[error("it answers {0}")]
    Status(u16),
}

/// What is wrong with what the hub says of a repository.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum AnswerError {
    #[error("it is longer than {}", format_bytes(*most))]
    TooLong { most: u64 },
    #[error("it is not what was expected: {0}")]
    Json(serde_json::Error),
    #[error("commit {0:?} is not 40 hexadecimal digits")]
    Commit(String),
    #[error("file {name:?}: {reason}")]
    FileName { name: String, reason: &'static str },
    #[error("{files} files, more than {most}")]
    ManyFiles { files: usize, most: usize },
    #[error("file {name:?} has {}, more than {}", format_bytes(*bytes), format_bytes(*most))]
    LargeFile { name: String, bytes: u64, most: u64 },
    #[error("file {name:?} has no digest (found {found:?})")]
    NoDigest { name: String, found: String },
    #[error("file {name:?} has no size")]
    NoSize { name: String },
}

/// Which token was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenUsed {
    /// The one found there.
    From(String),
    /// None; there it was looked for.
    None(Vec<String>),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.into(), cause }
    }
}

/// What to do to be let in.
fn access(page: &str, token: &TokenUsed) -> String {
    match token {
        TokenUsed::From(place) => format!(
            "The token of {place} was sent: check the name, and that its account was granted access at {page}"
        ),
        TokenUsed::None(looked) => format!(
            "Check the name; if {page} asks for an account, put its token into one of {}",
            looked.join(", ")
        ),
    }
}

/// What a hub says, or what is said about that: one line of at most [`MOST_SAID`] characters, none of them a control
/// character.
fn said(text: &impl Display) -> String {
    let text = text.to_string();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().map(plain).take(MOST_SAID).collect();
    if text.chars().nth(MOST_SAID).is_some() {
        line.push('…');
    }
    line
}

fn paths(looked: &[PathBuf]) -> String {
    looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_hub_says_is_one_plain_line() {
        let odd = "\u{1b}]0;title\u{7}\r\n\u{9b}2J\u{7f}".to_owned() + &"ä".repeat(1 << 20);
        let (repo, url, file) = ("org/name", "https://hub.example/x", odd.clone());
        let read = || io::Error::other(odd.clone());
        let cause = || AnswerError::FileName { name: odd.clone(), reason: "it is absolute" };
        let unsafe_name =
            IndexError::UnsafeFileName { file: odd.clone(), reason: "it is absolute" };
        let location = odd.clone();
        for error in [
            Error::Answer { repo: repo.into(), cause: cause() },
            Error::Answer { repo: repo.into(), cause: AnswerError::Commit(odd.clone()) },
            Error::Index { repo: repo.into(), cause: unsafe_name },
            Error::FileMissing { repo: repo.into(), file },
            Error::Redirect { url: url.into(), location, reason: "that is no address" },
            Error::Unreachable { url: url.into(), tries: 8, cause: Cause::Read(read()) },
            Error::Unreachable {
                url: url.into(),
                tries: 8,
                cause: Cause::Request(Box::new(ureq::Error::Io(read()))),
            },
        ] {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!((20..MOST_SAID + 200).contains(&text.chars().count()), "{text:?}");
        }
        assert_eq!(said(&"ordinary words"), "ordinary words");
    }
}
