//! What a repository has, as the Hub says.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use ureq::http::Uri;

use crate::client::{Hub, Subject, header};
use crate::error::{AnswerError, Cause, Error};
use crate::hash::Hash;
use crate::names::{Wanted, is_commit, unsafe_name};
use crate::pace::Paced;
use crate::retry::{Tries, Trouble};

/// Longest answer about a repository.
const MAX_BYTES: u64 = 64 << 20;
/// Most files of a repository.
const MAX_FILES: usize = 100_000;
/// Largest file: beyond what any hub takes.
const MAX_FILE_BYTES: u64 = 4 << 40;

/// A repository at a commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    /// By name, no name twice.
    pub(crate) files: Vec<Entry>,
}

/// A file of it. Which of its facts are known depends on the hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) hash: Option<Hash>,
}

/// A file that can be fetched and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
}

#[derive(Deserialize)]
struct Raw {
    sha: String,
    #[serde(default)]
    siblings: RawFiles,
}

/// The first [`MAX_FILES`] of a repository's, and how many there are: what a hub says does not decide what is kept.
#[derive(Default)]
struct RawFiles {
    first: Vec<RawFile>,
    count: usize,
}

#[derive(Deserialize)]
struct RawFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<RawLfs>,
}

#[derive(Deserialize)]
struct RawLfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl<'de> Deserialize<'de> for RawFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Files;
        impl<'de> Visitor<'de> for Files {
            type Value = RawFiles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of files")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawFiles, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX_FILES
                    && let Some(file) = list.next_element()?
                {
                    first.push(file);
                }
                let mut count = first.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(RawFiles { first, count })
            }
        }
        deserializer.deserialize_seq(Files)
    }
}

impl Listing {
    /// Asks the hub.
    pub(crate) fn ask(
        hub: &Hub,
        wanted: &Wanted,
        stop: &dyn Fn() -> bool,
    ) -> Result<Listing, Error> {
        let url = hub.listing_url(wanted);
        let json = fetch(hub, &url, Subject { wanted, file: None }, MAX_BYTES, stop)?;
        let refused = |cause| Error::Answer { repo: wanted.repo.clone(), cause };
        let json = json.ok_or_else(|| refused(AnswerError::TooLong { most: MAX_BYTES }))?;
        parse(&json).map_err(refused)
    }

    /// The same file with all that is needed to fetch and check it; what was not said is asked for.
    pub(crate) fn complete(
        &self,
        hub: &Hub,
        wanted: &Wanted,
        entry: &Entry,
        stop: &dyn Fn() -> bool,
    ) -> Result<RemoteFile, Error> {
        let Entry { name, bytes, hash } = entry.clone();
        if let (Some(bytes), Some(hash)) = (bytes, hash) {
            return Ok(RemoteFile { name, bytes, hash });
        }
        let url = hub.file_url(wanted, &self.commit, &name);
        let subject = Subject { wanted, file: Some(&name) };
        let headers = patiently(&url, stop, || hub.head(&parsed(&url)?, subject))?;
        let said = |first: &str, second: &str| header(&headers, first).or(header(&headers, second));
        let refused = |cause| Error::Answer { repo: wanted.repo.clone(), cause };
        let tag = said("x-linked-etag", "etag").unwrap_or_default();
        let digits = tag.trim_start_matches("W/").trim_matches('"');
        let no_digest = || AnswerError::NoDigest { name: name.clone(), found: tag.to_owned() };
        let hash = Hash::parse(digits).ok_or_else(|| refused(no_digest()))?;
        let bytes = said("x-linked-size", "content-length").and_then(|text| text.parse().ok());
        let bytes = bytes.ok_or_else(|| refused(AnswerError::NoSize { name: name.clone() }))?;
        let bytes = bounded(&name, bytes).map_err(refused)?;
        Ok(RemoteFile { name, bytes, hash })
    }
}

/// All bytes of an address, if they are at most `most`.
pub(crate) fn fetch(
    hub: &Hub,
    url: &str,
    subject: Subject<'_>,
    most: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>, Error> {
    patiently(url, stop, || {
        let answer = hub.get(&parsed(url)?, None, subject)?;
        let mut bytes = Vec::new();
        let body = Paced::new(answer.response.into_body().into_reader());
        let broke = |error| Trouble::Passing { cause: Cause::Read(error), after: None };
        body.take(most + 1).read_to_end(&mut bytes).map_err(broke)?;
        Ok((bytes.len() as u64 <= most).then_some(bytes))
    })
}

/// Tries until it works, may not work, was tried often enough, or is to stop.
fn patiently<T>(
    url: &str,
    stop: &dyn Fn() -> bool,
    attempt: impl Fn() -> Result<T, Trouble>,
) -> Result<T, Error> {
    let mut tries = Tries::few();
    while !stop() {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(_) if stop() => {}
            Err(trouble) => tries.again(url, trouble, stop)?,
        }
    }
    Err(Error::Stopped { done: 0, total: 0 })
}

/// An address of the hub's, of which every part was checked.
pub(crate) fn parsed(url: &str) -> Result<Uri, Error> {
    url.parse().map_err(|_| Error::Endpoint { endpoint: url.to_owned() })
}

fn parse(json: &[u8]) -> Result<Listing, AnswerError> {
    let Raw { sha, siblings } = serde_json::from_slice(json).map_err(AnswerError::Json)?;
    if !is_commit(&sha) {
        return Err(AnswerError::Commit(sha));
    }
    if siblings.count > MAX_FILES {
        return Err(AnswerError::ManyFiles { files: siblings.count, most: MAX_FILES });
    }
    let mut files = siblings.first.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    // Known now, and not when all has been fetched and one cannot be laid out.
    let names: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let is_below = |name: &str| name.match_indices('/').any(|(at, _)| names.contains(&name[..at]));
    if let Some(file) = files.iter().find(|file| is_below(&file.name)) {
        let reason = "its folder is a file of the same repository";
        return Err(AnswerError::FileName { name: file.name.clone(), reason });
    }
    Ok(Listing { commit: sha.to_ascii_lowercase(), files })
}

fn entry(raw: RawFile) -> Result<Entry, AnswerError> {
    let name = raw.rfilename;
    if let Some(reason) = unsafe_name(&name) {
        return Err(AnswerError::FileName { name, reason });
    }
    // What Git has of a file in LFS is a pointer: its digest is not that of the file.
    let (bytes, digest) = match raw.lfs {
        Some(lfs) => (lfs.size.or(raw.size), lfs.sha256),
        None => (raw.size, raw.blob_id),
    };
    let bytes = bytes.map(|bytes| bounded(&name, bytes)).transpose()?;
    let no_digest =
        |found: &str| AnswerError::NoDigest { name: name.clone(), found: found.to_owned() };
    let hash =
        digest.map(|digest| Hash::parse(&digest).ok_or_else(|| no_digest(&digest))).transpose()?;
    Ok(Entry { name, bytes, hash })
}

fn bounded(name: &str, bytes: u64) -> Result<u64, AnswerError> {
    let too_large =
        || AnswerError::LargeFile { name: name.to_owned(), bytes, most: MAX_FILE_BYTES };
    (bytes <= MAX_FILE_BYTES).then_some(bytes).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(files: &str) -> Result<Listing, AnswerError> {
        parse(format!(r#"{{"sha":"{COMMIT}","siblings":[{files}],"private":false}}"#).as_bytes())
    }

    #[test]
    fn files_have_the_digest_of_their_bytes() {
        let git = "b".repeat(40);
        let sha256 = "a".repeat(64);
        let files = format!(
            r#"{{"rfilename":"m.safetensors","size":9,"blobId":"{git}","lfs":{{"sha256":"{sha256}","size":9,"pointerSize":1}}}},
               {{"rfilename":"config.json","size":2,"blobId":"{git}"}},{{"rfilename":"old.json"}}"#
        );
        let listing = listing(&files).unwrap();
        let found: Vec<_> = listing
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.bytes, file.hash.clone()))
            .collect();
        let expected = [
            ("config.json", Some(2), Some(Hash::Git(git))),
            ("m.safetensors", Some(9), Some(Hash::Sha256(sha256))),
            ("old.json", None, None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn answers_that_cannot_be_true_are_refused() {
        for (files, expected) in [
            (r#"{"rfilename":"../x"}"#, "leaves the directory"),
            (r#"{"rfilename":"x","size":99999999999999999}"#, "more than 4 TiB"),
            (r#"{"rfilename":"x","blobId":"../../x"}"#, "no digest"),
            (r#"{"rfilename":7}"#, "not what was expected"),
            (r#"{"rfilename":"x\u001b[2J"}"#, "control character"),
            (
                r#"{"rfilename":"x/y"},{"rfilename":"x-y"},{"rfilename":"x"}"#,
                "its folder is a file",
            ),
        ] {
            let error = listing(files).unwrap_err().to_string();
            assert!(error.contains(expected), "{files}: {error}");
        }
        let error = parse(br#"{"sha":"main","siblings":[]}"#).unwrap_err().to_string();
        assert!(error.contains("40 hexadecimal"), "{error}");
    }

    #[test]
    fn more_files_than_may_be_are_counted_and_not_kept() {
        let file = |index: usize| format!(r#"{{"rfilename":"{index}"}},"#);
        let mut files: String = (0..MAX_FILES).map(file).collect();
        files.pop();
        assert_eq!(listing(&files).unwrap().files.len(), MAX_FILES);
        // What comes after the most is not even read as files.
        let error = listing(&(files + ",{},7")).unwrap_err().to_string();
        assert_eq!(error, "100002 files, more than 100000");
    }
}
