//! Reading a file at a position, without moving a cursor that others share.

use std::fs::File;
use std::io;

/// Fills `buffer` from `offset` on.
///
/// # Errors
/// `UnexpectedEof` when the file ends first; else what the system says.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
    }
    #[cfg(windows)]
    {
        let (mut done, mut offset) = (0, offset);
        while done < buffer.len() {
            match std::os::windows::fs::FileExt::seek_read(file, &mut buffer[done..], offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    done += read;
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }
}
