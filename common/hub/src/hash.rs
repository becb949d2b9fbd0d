//! Digests by which the Hub names files: SHA-256 of those in LFS, Git's own of the others.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// What the bytes of a file must be, and the name of its blob.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Hash {
    /// SHA-256 of the bytes.
    Sha256(String),
    /// SHA-1 of `blob LENGTH\0` and the bytes, as Git has it.
    Git(String),
}

impl Hash {
    /// 64 or 40 hexadecimal digits; nothing else may become the name of a file.
    pub(crate) fn parse(text: &str) -> Option<Hash> {
        let hexadecimal = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match (text.len(), hexadecimal) {
            (64, true) => Some(Hash::Sha256(text.to_owned())),
            (40, true) => Some(Hash::Git(text.to_owned())),
            _ => None,
        }
    }

    /// Its digits.
    pub(crate) fn name(&self) -> &str {
        let (Hash::Sha256(digits) | Hash::Git(digits)) = self;
        digits
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Hash::Sha256(_) => "SHA-256",
            Hash::Git(_) => "Git blob",
        }
    }

    /// Hashes a file of `bytes` bytes in the same way.
    pub(crate) fn hasher(&self, bytes: u64) -> Hasher {
        Hasher(match self {
            Hash::Sha256(_) => Context::new(&SHA256),
            Hash::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {bytes}\0").as_bytes());
                context
            }
        })
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file being hashed, from its first byte on.
#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest, in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(hash: &str, bytes: &[u8]) -> String {
        let mut hasher = Hash::parse(hash).unwrap().hasher(bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn digests_are_those_of_git_and_of_lfs() {
        // `git hash-object` of "hello\n", and `sha256sum` of "abc".
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(digest(git, b"hello\n"), git);
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(sha256, b"abc"), sha256);
    }

    #[test]
    fn only_digests_are_names() {
        for text in [
            "",
            "abc",
            "../../../../../../../../../../../../../x",
            &"g".repeat(64),
            &"A".repeat(40),
        ] {
            assert_eq!(Hash::parse(text), None, "{text}");
        }
    }
}
