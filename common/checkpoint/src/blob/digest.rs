//! A BLAKE3 digest, written as 64 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// 32 bytes of BLAKE3. Text form: 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is not a digest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits; this text of {length} bytes is not")]
pub struct DigestParseError {
    /// Length of what was given, in bytes.
    pub length: usize,
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// A digest from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The digest of bytes that come in pieces.
#[derive(Clone, Debug, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Bytes added so far.
    pub fn bytes(&self) -> u64 {
        self.0.count()
    }

    /// The digest of what was added; begins anew.
    pub fn finish(&mut self) -> Digest {
        let digest = Digest(*self.0.finalize().as_bytes());
        self.0.reset();
        digest
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    fn from_str(text: &str) -> Result<Self, DigestParseError> {
        // One spelling per digest: it is used as a file name.
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(DigestParseError { length: text.len() });
        }
        blake3::Hash::from_hex(text)
            .map(|hash| Digest(*hash.as_bytes()))
            .map_err(|_| DigestParseError { length: text.len() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_digest_of_the_whole() {
        let mut hasher = Hasher::default();
        for bytes in [&b"one two"[..], b"", b"x"] {
            hasher.update(&bytes[..bytes.len() / 2]);
            hasher.update(&bytes[bytes.len() / 2..]);
            assert_eq!(hasher.bytes(), bytes.len() as u64);
            assert_eq!(hasher.finish(), Digest::of(bytes));
        }
    }

    #[test]
    fn text_round_trips_in_one_spelling() {
        let digest = Digest::of(b"");
        let text = digest.to_string();
        assert_eq!(text, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("\"{text}\""));
        for wrong in ["", &text[1..], &text.to_uppercase(), &text.replace('a', "g"), "../../etc"] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
