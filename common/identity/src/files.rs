//! Files that only their owner can read.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Longest file read.
const LONGEST: u64 = 16 << 20;

/// Makes a directory that only its owner can look into.
pub(crate) fn make_private(directory: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Replaces a file at once: whoever reads it finds the old content or the new one.
pub(crate) fn write<T: Serialize>(
    path: &Path,
    what: &'static str,
    content: &T,
) -> Result<(), Error> {
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let json = serde_json::to_vec_pretty(content).map_err(|error| failed(error.into()))?;
    let beside = path.with_extension(format!("{}.new", crate::random_token()));
    let result = write_new(&beside, &json).and_then(|()| fs::rename(&beside, path));
    if result.is_err() {
        fs::remove_file(&beside).ok();
    }
    result.map_err(failed)
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// What a file has; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
) -> Result<Option<T>, Error> {
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    let parsed = serde_json::from_slice(&bytes);
    let damaged = |error: serde_json::Error| Error::Damaged {
        what,
        path: path.to_owned(),
        reason: error.to_string(),
    };
    parsed.map(Some).map_err(damaged)
}

/// Bytes as text in files.
pub(crate) mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}
