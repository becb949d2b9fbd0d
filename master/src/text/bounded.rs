//! Reading files whose length is not trusted.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Reads up to `limit_bytes`; `Err` holds the length when there is more.
pub(super) fn read_bounded(path: &Path, limit_bytes: u64) -> io::Result<Result<Vec<u8>, u64>> {
    let file = fs::File::open(path)?;
    let announced = file.metadata()?.len();
    if announced > limit_bytes {
        return Ok(Err(announced));
    }
    let mut bytes = Vec::new();
    let read = file.take(limit_bytes + 1).read_to_end(&mut bytes)? as u64;
    Ok(if read > limit_bytes { Err(read) } else { Ok(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let path = Path::new("/dev/zero");
        if path.exists() {
            assert_eq!(read_bounded(path, 100).expect("opens"), Err(101));
        }
    }

    #[test]
    fn reads_up_to_the_limit() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("file");
        fs::write(&path, "12345").expect("writes");
        assert_eq!(read_bounded(&path, 5).expect("reads"), Ok(b"12345".to_vec()));
        assert_eq!(read_bounded(&path, 4).expect("reads"), Err(5));
    }
}
