//! The checksum at the end of an APR file.

use std::path::Path;

use crc32fast::Hasher;

use super::error::AprError;
use super::head::Head;
use super::layout::FOOTER_BYTES;
use crate::error::Error;
use crate::file::read_exact_at;

/// How much is read at once (bytes).
const PIECE_BYTES: usize = 1 << 20;

/// What the end of a file says of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Footer {
    /// They are those that were written.
    Right,
    /// There is no checksum.
    Absent,
}

/// Reads a whole file and compares its bytes with the checksum at its end. `progress` is told the bytes read so far.
///
/// # Errors
/// As [`Head::read`], and [`AprError::FooterChecksum`] if bytes changed since they were written.
pub fn verify_footer(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Footer, Error> {
    let (head, file, file_bytes) = Head::read(path)?;
    if !head.has_footer {
        return Ok(Footer::Absent);
    }
    let failed = |cause| Error::io("read", path, cause);
    let end = file_bytes - FOOTER_BYTES; // There is one.
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut done = 0;
    while done < end {
        let piece = &mut buffer[..(end - done).min(PIECE_BYTES as u64) as usize];
        read_exact_at(&file, piece, done).map_err(failed)?;
        hasher.update(piece);
        done += piece.len() as u64;
        progress(done);
    }
    let mut found = [0; FOOTER_BYTES as usize];
    read_exact_at(&file, &mut found, end).map_err(failed)?;
    let (expected, found) = (hasher.finalize(), u32::from_le_bytes(found));
    if expected != found {
        let cause = AprError::FooterChecksum { expected, found };
        return Err(Error::Apr { path: path.into(), cause });
    }
    Ok(Footer::Right)
}
