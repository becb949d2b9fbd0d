//! Disk space.

use std::io;
use std::path::Path;

/// Room on the file system that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes an ordinary process may still write.
    pub free_bytes: u64,
    /// Size of the whole file system.
    pub total_bytes: u64,
}

/// What whoever writes much leaves free of a disk (bytes): others write there, too.
pub const DISK_RESERVE: u64 = 64 << 20;

/// Room on the file system of `path`. Where the system cannot be asked, room without limit: writes
/// then fail by themselves when the disk is full.
#[cfg(unix)]
pub fn free_space(path: &Path) -> io::Result<DiskSpace> {
    let stat = rustix::fs::statvfs(path)?;
    let block = if stat.f_frsize == 0 { stat.f_bsize } else { stat.f_frsize };
    Ok(DiskSpace {
        free_bytes: stat.f_bavail.saturating_mul(block),
        total_bytes: stat.f_blocks.saturating_mul(block),
    })
}

/// Room without limit: this system is not asked.
#[cfg(not(unix))]
pub fn free_space(path: &Path) -> io::Result<DiskSpace> {
    path.metadata()?;
    Ok(DiskSpace { free_bytes: u64::MAX, total_bytes: u64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_room() {
        let directory = tempfile::tempdir().unwrap();
        let space = free_space(directory.path()).unwrap();
        assert!(space.free_bytes <= space.total_bytes);
        assert!(space.total_bytes > 0);
        assert!(free_space(&directory.path().join("absent")).is_err());
    }
}
