//! Files that say how long they are and hold nothing.

use std::fs::File;

/// Whether a file is one hole from the byte `from` to its end, but for what the disk's block there begins with: its length
/// was set, and nothing was written, so that it takes no room on the disk. False where the system does not tell.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"))]
pub fn is_hollow(file: &File, from: u64) -> bool {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{SeekFrom, seek};
    let Ok(metadata) = file.metadata() else { return false };
    // The block that has the byte before it is there.
    let from = from.next_multiple_of(metadata.blksize().max(1));
    // Nothing is there to be found (ENXIO); all other errors say nothing of holes.
    from < metadata.len() && seek(file, SeekFrom::Data(from)) == Err(rustix::io::Errno::NXIO)
}

/// Always false: nothing tells.
#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "macos",
    target_os = "freebsd"
)))]
pub fn is_hollow(_: &File, _: u64) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_is_hollow_until_something_is_written_behind_its_beginning() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"header", 0).unwrap();
        assert!(!is_hollow(&file, 6), "it ends there");
        file.set_len(64 << 20).unwrap();
        assert!(!is_hollow(&file, 0), "the header is something");
        assert!(is_hollow(&file, 6));
        file.write_all_at(&[0], (64 << 20) - 1).unwrap();
        assert!(!is_hollow(&file, 6), "a zero that was written is there");
    }
}
