//! The checksum at the end of an APR file.

use std::fs::File;
use std::io;

use super::layout::FOOTER_BYTES;
use crate::container::contents::Checksum;
use crate::file::read_exact_at;

/// Reads what a file of `file_bytes` ends in, if its head says that it ends in a checksum.
///
/// # Errors
/// What the system says.
pub(super) fn read(file: &File, file_bytes: u64, is_there: bool) -> io::Result<Option<Checksum>> {
    let bytes = match file_bytes.checked_sub(FOOTER_BYTES) {
        Some(bytes) if is_there => bytes,
        _ => return Ok(None),
    };
    let mut found = [0; FOOTER_BYTES as usize];
    read_exact_at(file, &mut found, bytes)?;
    Ok(Some(Checksum { bytes, crc32: u32::from_le_bytes(found) }))
}
