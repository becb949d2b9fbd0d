//! Reading the beginning of a file, of which perhaps not all was read yet.

use super::error::GgufError;
use super::limits::MAX_KEY_BYTES;

/// Why nothing more was taken.
#[derive(Debug)]
pub(super) enum Stop {
    /// What was read ends here, and the file does not.
    More,
    /// The file is wrong.
    Wrong(GgufError),
}

impl From<GgufError> for Stop {
    fn from(error: GgufError) -> Self {
        Stop::Wrong(error)
    }
}

/// A place in the beginning of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Length of the whole file.
    file_bytes: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], file_bytes: u64) -> Self {
        Self { bytes, at: 0, file_bytes }
    }

    /// How far it is.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// The next bytes. `what` they are of, for whoever learns that the file ends before them.
    ///
    /// # Errors
    /// [`Stop`]; nothing is allocated for what is not there.
    pub(super) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], Stop> {
        let end = self.position().checked_add(count).filter(|end| *end <= self.file_bytes);
        let Some(end) = end else {
            let (what, file_bytes, at) = (what.to_owned(), self.file_bytes, self.position());
            return Err(GgufError::Cut { what, at, need: count, file_bytes }.into());
        };
        let end = usize::try_from(end).map_err(|_| Stop::More)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::More)?;
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Stop> {
        let taken = self.take(N as u64, what)?;
        Ok(*taken.first_chunk().expect("so many were taken"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Stop> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Stop> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The bytes of a text, whose length comes first.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a [u8], Stop> {
        let count = self.u64(what)?;
        self.take(count, what)
    }

    /// A key or the name of a tensor: not empty, bounded, UTF-8.
    pub(super) fn name(&mut self, what: &str) -> Result<String, Stop> {
        let bytes = self.text(what)?;
        if bytes.is_empty() || bytes.len() as u64 > MAX_KEY_BYTES {
            let (what, bytes) = (what.to_owned(), bytes.len() as u64);
            return Err(GgufError::NameLength { what, bytes }.into());
        }
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(GgufError::NameNotUtf8 { what: what.to_owned() }.into()),
        }
    }

    /// Refuses a number of things that the file has no room for, each of so many bytes at least.
    ///
    /// # Errors
    /// [`GgufError::NoRoom`]
    pub(super) fn has_room(&self, count: u64, each: u64, what: &str) -> Result<(), GgufError> {
        let left = self.file_bytes - self.position(); // What was taken is in the file.
        match count.checked_mul(each) {
            Some(bytes) if bytes <= left => Ok(()),
            _ => Err(GgufError::NoRoom { what: what.to_owned(), count, left }),
        }
    }
}
