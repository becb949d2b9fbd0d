//! Digests of tensors: what a checkpoint holds, in a form that can be compared later and elsewhere.

use std::collections::BTreeMap;

use cake_checkpoint::StoredTensor;

use crate::checksum::{Summed, join};
use crate::error::Error;
use crate::job::Observer;
use crate::piece::Stretch;
use crate::scan::scan;
use crate::source::{Source, SourceFile};

/// What is read at once.
const BUFFER_BYTES: u64 = 1 << 20;
/// Longest list of digests that is read.
pub const MAX_DIGESTS_BYTES: u64 = 1 << 28;

/// BLAKE3 of the bytes of each tensor, in hexadecimal, by name.
pub type Digests = BTreeMap<String, String>;

/// Reads every tensor once, and all else of the files that end in a checksum, which is compared.
///
/// # Errors
/// [`Error::Checkpoint`] if the checksum is of other bytes; [`Error::Io`] or [`Error::Shrunk`] for a file that cannot be
/// read, [`Error::Interrupted`].
pub fn digests(source: &Source, threads: usize, observer: &dyn Observer) -> Result<Digests, Error> {
    let stretches = stretches(source);
    let read = read(source, &stretches, threads, observer)?;
    Ok(read.into_iter().filter_map(|(digest, _)| digest).collect())
}

/// Reads all of the files that end in a checksum, and compares it.
///
/// # Errors
/// As [`digests`].
pub(crate) fn check(source: &Source, threads: usize, observer: &dyn Observer) -> Result<(), Error> {
    if source.files.iter().all(|file| file.checksum.is_none()) {
        return Ok(()); // Most formats have none, and a model may have many tensors.
    }
    let mut stretches = stretches(source);
    stretches.retain(|(stretch, _)| source.files[stretch.file].checksum.is_some());
    stretches.iter_mut().for_each(|(_, name)| *name = None);
    read(source, &stretches, threads, observer).map(drop)
}

/// Of a stretch: the name and the digest of the tensor that it is; the checksum, where the file ends in one.
type Read = (Option<(String, String)>, Option<u32>);

fn read(
    source: &Source,
    stretches: &[(Stretch, Option<&str>)],
    threads: usize,
    observer: &dyn Observer,
) -> Result<Vec<Read>, Error> {
    let total = stretches.iter().map(|(stretch, _)| stretch.bytes).sum();
    let found = scan(stretches, total, threads, observer, |scan, (stretch, name)| {
        let Stretch { file, offset, bytes } = *stretch;
        let file = &source.files[file];
        let mut digest = blake3::Hasher::new();
        let mut checksum = file.checksum.map(|_| crc32fast::Hasher::new());
        let mut buffer = vec![0; BUFFER_BYTES.min(bytes) as usize];
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(BUFFER_BYTES);
            let buffer = &mut buffer[..piece as usize];
            file.read_at(offset + done, buffer)?;
            if name.is_some() {
                digest.update(buffer);
            }
            if let Some(checksum) = &mut checksum {
                checksum.update(buffer);
            }
            done += piece;
            scan.read(piece)?;
        }
        let digest = name.map(|name| (name.to_owned(), digest.finalize().to_hex().to_string()));
        Ok((digest, checksum.map(crc32fast::Hasher::finalize)))
    })?;
    for (index, file) in source.files.iter().enumerate() {
        let Some(expected) = file.checksum else { continue };
        let all = stretches.iter().zip(&found).filter(|((stretch, _), _)| stretch.file == index);
        let summed = all.filter_map(|((stretch, _), (_, crc32))| {
            let Stretch { offset, bytes, .. } = *stretch;
            Some(Summed { offset, bytes, crc32: (*crc32)? })
        });
        expected.check(&file.path, join(summed.collect(), expected.bytes))?;
    }
    Ok(found)
}

/// What is read: the tensors, by name, and what lies between them in files that end in a checksum.
fn stretches(source: &Source) -> Vec<(Stretch, Option<&str>)> {
    let mut stretches = Vec::with_capacity(source.tensors.len());
    for (file, SourceFile { checksum, .. }) in source.files.iter().enumerate() {
        let mut at = 0;
        let between = |at: u64, end: u64| {
            let bytes = end.saturating_sub(at);
            (checksum.is_some() && bytes > 0).then_some((Stretch { file, offset: at, bytes }, None))
        };
        for tensor in source.tensors.iter().filter(|tensor| tensor.file == file) {
            let StoredTensor { name, offset, bytes, .. } = tensor;
            stretches.extend(between(at, *offset));
            let stretch = Stretch { file, offset: *offset, bytes: *bytes };
            stretches.push((stretch, Some(name.as_str())));
            at = at.max(offset + bytes); // An empty one may lie at the beginning of another.
        }
        let end = checksum.map_or(0, |checksum| checksum.bytes);
        stretches.extend(between(at, end));
    }
    stretches
}

/// As lines of a digest, two spaces and the name. A line whose name has a backslash or an end of line begins with a backslash,
/// and has `\\`, `\n` and `\r` in their place, as with the programs that check sums of files.
pub fn to_text(digests: &Digests) -> String {
    let line = |(name, digest): (&String, &String)| match name.contains(['\\', '\n', '\r']) {
        false => format!("{digest}  {name}\n"),
        true => {
            let name = name.replace('\\', r"\\").replace('\n', r"\n").replace('\r', r"\r");
            format!("\\{digest}  {name}\n")
        }
    };
    digests.iter().map(line).collect()
}

/// Reads what [`to_text`] wrote.
///
/// # Errors
/// The number of the first line that is none, counted from 1.
pub fn from_text(text: &str) -> Result<Digests, usize> {
    let line = |(number, line): (usize, &str)| {
        let (digest, name) = line.split_once("  ").ok_or(number + 1)?;
        let (digest, name) = match digest.strip_prefix('\\') {
            None => (digest, name.to_owned()),
            Some(digest) => (digest, plain(name).ok_or(number + 1)?),
        };
        let is_digest = digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit());
        let entry = (name, digest.to_ascii_lowercase());
        if is_digest { Ok(entry) } else { Err(number + 1) }
    };
    text.lines().enumerate().map(line).collect()
}

/// A name without what [`to_text`] writes for backslashes and ends of lines.
fn plain(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name.chars();
    while let Some(it) = rest.next() {
        plain.push(match it {
            '\\' => match rest.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            it => it,
        });
    }
    Some(plain)
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
    fn any_name_survives_as_text() {
        let names = ["a b", r"a\nb", "a\nb\r", "\\", "  two  ", ""];
        let digests: Digests = names.map(|name| (name.to_owned(), "0".repeat(64))).into();
        assert_eq!(from_text(&to_text(&digests)), Ok(digests));
        assert_eq!(from_text(&format!("\\{}  a\\tb", "0".repeat(64))), Err(1));
    }

    #[test]
    fn a_line_that_is_no_digest_is_counted() {
        let digest = "0".repeat(64);
        assert_eq!(from_text(&format!("{digest}  a\n{digest} b\n")), Err(2));
        assert_eq!(from_text("xyz  a"), Err(1));
        assert_eq!(from_text(""), Ok(Digests::new()));
    }
}
