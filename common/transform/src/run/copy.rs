//! Bytes of the source that go to their place as they are: inside the kernel where it can, where the file system shares
//! them even without copying.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;

use super::bench::Bench;
use super::written::Written;
use crate::bytes::{self, BLOCK_BYTES, write_all_at};
use crate::error::Error;
use crate::piece::{Place, Stretch};

/// What is read at once, to be hashed or to be written.
const BUFFER_BYTES: usize = 1 << 20;
/// Whether bytes lie alike in their blocks there and here. Where they do not, a file system shares none of them, and the
/// kernel, which copies page by page, writes each page in two parts: slower than copying by hand, but for file systems
/// whose server would have copied.
fn lie_alike(from: u64, to: u64) -> bool {
    from % BLOCK_BYTES == to % BLOCK_BYTES
}

/// Copies the bytes `range` of `from`.
pub(super) fn copy(
    bench: &mut Bench<'_>,
    from: Stretch,
    place: Place,
    range: Range<u64>,
) -> Result<Written, Error> {
    let source = &bench.job.source.files[from.file];
    let (offset, length) = (from.offset + range.start, range.end - range.start);
    let to = Place { output: place.output, offset: place.offset + range.start };
    let output = bench.outputs.file(to.output);
    let (mut copied, mut was_cached) = (false, true);
    if lie_alike(offset, to.offset) {
        was_cached = bytes::is_cached(&source.handle, offset, length);
        let done = in_kernel(&source.handle, offset, output, to.offset, length);
        copied = done.map_err(|cause| match cause.kind() {
            ErrorKind::UnexpectedEof => Error::Shrunk { path: source.path.clone() },
            _ => bench.write_failed(to.output, cause),
        })?;
    }
    let mut written = bench.written();
    written.place();
    bench.buffer.resize(BUFFER_BYTES, 0);
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(BUFFER_BYTES as u64) as usize;
        let buffer = &mut bench.buffer[..piece];
        source.read_at(offset + done, buffer)?;
        written.add(buffer);
        if !copied {
            write_all_at(output, buffer, to.offset + done)
                .map_err(|cause| bench.write_failed(to.output, cause))?;
        }
        done += piece as u64;
    }
    if copied && !was_cached {
        bytes::forget(&source.handle, offset, length);
    }
    Ok(written)
}

/// Whether the kernel did it. If not, nothing of it is there.
#[cfg(target_os = "linux")]
fn in_kernel(
    source: &File,
    mut offset: u64,
    output: &File,
    mut to: u64,
    length: u64,
) -> std::io::Result<bool> {
    use rustix::fs::copy_file_range;
    use rustix::io::Errno;

    let (end, beginning) = (offset + length, offset);
    while offset < end {
        let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut offset), output, Some(&mut to), left) {
            // Some say so of any file; whether it is shorter is seen when it is read.
            Ok(0) if offset == beginning => return Ok(false),
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            // Two file systems, or one that cannot; files of some only say so.
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM)
                if offset == beginning =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: &File, _: u64, _: &File, _: u64, _: u64) -> std::io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_alike_where_they_begin_at_the_same_place_of_a_block() {
        let (block, at) = (BLOCK_BYTES, 100);
        for (from, to, alike) in [
            (0, 0, true),
            (at, at + 7 * block, true),
            (at, at + 1, false),
            (at, at + block / 2, false),
        ] {
            assert_eq!(lie_alike(from, to), alike, "{from} {to}");
        }
    }
}
