//! What was written of a unit: a digest, and where the job ends in a checksum of all, what that is joined from.

use crc32fast::Hasher;

/// The digest of a unit's bytes and, if they are wanted, a checksum of each of its places; as text it is what the journal
/// has.
pub(super) struct Written {
    digest: blake3::Hasher,
    checksums: Option<Vec<Hasher>>,
}

impl Written {
    /// Nothing yet. `checksums`: whether they are wanted.
    pub(super) fn new(checksums: bool) -> Written {
        Written { digest: blake3::Hasher::new(), checksums: checksums.then(Vec::new) }
    }

    /// The bytes that come now are in another place.
    pub(super) fn place(&mut self) {
        if let Some(checksums) = &mut self.checksums {
            checksums.push(Hasher::new());
        }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        if let Some(checksum) = self.checksums.as_mut().and_then(|all| all.last_mut()) {
            checksum.update(bytes);
        }
    }

    /// Half of the digest, as nobody is kept from lying here and only mistakes are found; then `:CHECKSUM` of each place.
    pub(super) fn into_text(self) -> String {
        let mut text = self.digest.finalize().to_hex()[..32].to_owned();
        for checksum in self.checksums.into_iter().flatten() {
            text += &format!(":{:08x}", checksum.finalize());
        }
        text
    }
}

/// The checksums in a text of [`Written::into_text`]; `None` if it is none.
pub(super) fn checksums(text: &str) -> Option<Vec<u32>> {
    text.split(':').skip(1).map(|checksum| u32::from_str_radix(checksum, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_checksum() {
        let mut written = Written::new(true);
        for part in ["of the first", "of the second"] {
            written.place();
            part.as_bytes().chunks(5).for_each(|some| written.add(some));
        }
        let text = written.into_text();
        assert!(blake3::hash(b"of the firstof the second").to_hex().starts_with(&text[..32]));
        let expected = [b"of the first" as &[u8], b"of the second"].map(crc32fast::hash);
        assert_eq!(checksums(&text), Some(expected.to_vec()));
    }

    #[test]
    fn where_no_checksums_are_wanted_there_are_none() {
        let mut written = Written::new(false);
        written.place();
        written.add(b"abc");
        let text = written.into_text();
        assert_eq!((text.len(), checksums(&text)), (32, Some(vec![])));
        assert_eq!(checksums("aa:xyz"), None);
    }
}
