//! Files that a process holds by a lock.

use std::fs::File;
use std::path::Path;

/// Whether an open file is what is at `path` now. Whoever opens a file and then waits for, or takes, its lock asks this
/// afterwards: the one who held it before may have deleted or renamed it meanwhile, and the lock is one of nothing then.
/// What cannot be looked at is not there.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(own), Ok(there)) => place(own) == place(there),
        _ => false,
    }
}

/// Always true: what is open is neither deleted nor renamed here.
#[cfg(not(unix))]
pub fn is_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_where_its_name_is() {
        let home = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "b"].map(|name| home.path().join(name));
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path) && !is_at(&file, &other));
        std::fs::rename(&path, &other).unwrap();
        assert!(!is_at(&file, &path) && is_at(&file, &other));
        std::fs::write(&path, "another").unwrap();
        assert!(!is_at(&file, &path));
        std::fs::remove_file(&other).unwrap();
        assert!(!is_at(&file, &other));
    }
}
