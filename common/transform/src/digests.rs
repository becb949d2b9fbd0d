//! Digests of tensors: what a checkpoint holds, in a form that can be compared later and elsewhere.

use std::collections::BTreeMap;

use cake_checkpoint::StoredTensor;

use crate::error::Error;
use crate::job::Observer;
use crate::scan::scan;
use crate::source::Source;

/// What is read at once.
const BUFFER_BYTES: u64 = 1 << 20;
/// Longest list of digests that is read.
pub const MAX_DIGESTS_BYTES: u64 = 1 << 28;

/// BLAKE3 of the bytes of each tensor, in hexadecimal, by name.
pub type Digests = BTreeMap<String, String>;

/// Reads every tensor once; before that all of the file, if its format has a checksum of it.
///
/// # Errors
/// [`Error::Checkpoint`] if the checksum is of other bytes; [`Error::Io`] or [`Error::Shrunk`] for a file that cannot be read, [`Error::Interrupted`].
pub fn digests(source: &Source, threads: usize, observer: &dyn Observer) -> Result<Digests, Error> {
    let files = source.files.iter().map(|file| file.bytes).sum();
    let location = &source.location;
    location.container.verify(&location.path, &mut |read| observer.progress(read, files))?;
    let total = source.tensors.iter().map(|tensor| tensor.bytes).sum();
    let found = scan(&source.tensors, total, threads, observer, |scan, tensor| {
        let StoredTensor { name, file, offset, bytes, .. } = tensor;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; BUFFER_BYTES.min(*bytes) as usize];
        let mut done = 0;
        while done < *bytes {
            let piece = (bytes - done).min(BUFFER_BYTES);
            let buffer = &mut buffer[..piece as usize];
            source.files[*file].read_at(offset + done, buffer)?;
            hasher.update(buffer);
            done += piece;
            scan.read(piece)?;
        }
        Ok((name.clone(), hasher.finalize().to_hex().to_string()))
    })?;
    Ok(found.into_iter().collect())
}

/// As lines of a digest, two spaces and the name, which programs that check sums of files read, too.
pub fn to_text(digests: &Digests) -> String {
    digests.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect()
}

/// Reads what [`to_text`] wrote.
///
/// # Errors
/// The number of the first line that is none, counted from 1.
pub fn from_text(text: &str) -> Result<Digests, usize> {
    let line = |(number, line): (usize, &str)| {
        let (digest, name) = line.split_once("  ").ok_or(number + 1)?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit());
        let entry = (name.to_owned(), digest.to_ascii_lowercase());
        if is_digest { Ok(entry) } else { Err(number + 1) }
    };
    text.lines().enumerate().map(line).collect()
}

/// How digests that were found differ from those that were expected.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct DigestsDiffer {
    /// Tensors whose bytes are others.
    pub changed: Vec<String>,
    /// Tensors that are expected and not there.
    pub missing: Vec<String>,
    /// Tensors that are there and not expected.
    pub added: Vec<String>,
}

impl DigestsDiffer {
    /// What differs.
    pub fn between(found: &Digests, expected: &Digests) -> DigestsDiffer {
        let only = |a: &Digests, b: &Digests| {
            a.keys().filter(|name| !b.contains_key(*name)).cloned().collect::<Vec<_>>()
        };
        let changed = |(name, digest): &(&String, &String)| {
            expected.get(*name).is_some_and(|expected| expected != *digest)
        };
        DigestsDiffer {
            changed: found.iter().filter(changed).map(|(name, _)| name.clone()).collect(),
            missing: only(expected, found),
            added: only(found, expected),
        }
    }

    /// How many tensors differ.
    pub fn count(&self) -> usize {
        self.changed.len() + self.missing.len() + self.added.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Quiet, golden};

    #[test]
    fn digests_are_those_of_the_bytes_and_survive_as_text() {
        let source = golden("llama-sharded");
        let found = digests(&source, 2, &Quiet).unwrap();
        assert_eq!(found.len(), source.tensors.len());
        let tensor = &source.tensors[3];
        let mut bytes = vec![0; tensor.bytes as usize];
        source.files[tensor.file].read_at(tensor.offset, &mut bytes).unwrap();
        assert_eq!(found[&tensor.name], blake3::hash(&bytes).to_hex().to_string());
        assert_eq!(from_text(&to_text(&found)), Ok(found.clone()));
        // However the tensors lie in files.
        assert_eq!(digests(&golden("llama-sharded"), 1, &Quiet).unwrap(), found);
    }

    #[test]
    fn what_differs_is_named() {
        let of = |pairs: &[(&str, &str)]| -> Digests {
            pairs.iter().map(|(name, digest)| (name.to_string(), digest.to_string())).collect()
        };
        let (found, expected) = (of(&[("a", "1"), ("b", "2")]), of(&[("b", "3"), ("c", "4")]));
        let differ = DigestsDiffer::between(&found, &expected);
        let list = |name: &str| vec![name.to_owned()];
        let all = DigestsDiffer { changed: list("b"), missing: list("c"), added: list("a") };
        assert_eq!((differ.count(), differ), (3, all));
        assert_eq!(DigestsDiffer::between(&found, &found).count(), 0);
    }

    #[test]
    fn a_line_that_is_no_digest_is_counted() {
        let digest = "0".repeat(64);
        assert_eq!(from_text(&format!("{digest}  a\n{digest} b\n")), Err(2));
        assert_eq!(from_text("xyz  a"), Err(1));
        assert_eq!(from_text(""), Ok(Digests::new()));
    }
}
