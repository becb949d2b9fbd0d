//! A model in an APR file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::footer;
use super::head::Head;
use super::layout::MAGIC;
use super::texts::{TEXT_KEYS, texts};
use crate::container::contents::{CheckpointFile, Contents, Stored};
use crate::container::format::Container;
use crate::container::texts::TextFiles;
use crate::error::Error;
use crate::file::read_first;
use crate::model::ModelSpec;

/// APR files.
#[derive(Debug)]
pub struct Apr;

impl Container for Apr {
    fn recognise(&self, path: &Path) -> bool {
        path.is_file() && read_first(path, MAGIC.len() as u64).is_ok_and(|first| first == MAGIC)
    }

    fn open(&self, path: &Path) -> Result<Contents, Error> {
        let (head, file, file_bytes) = Head::read(path)?;
        let config = head.config().map_err(|cause| Error::Apr { path: path.into(), cause })?;
        let spec = ModelSpec::parse(&config)
            .map_err(|cause| Error::Config { path: path.into(), cause })?;
        let stored = stored(path, (head, file, file_bytes), Some(config.clone()))?;
        let spec = spec.of_files(&config, &stored.names());
        Ok(Contents { spec, stored })
    }

    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        let opened = Head::read(path)?;
        let config = opened.0.config().ok();
        stored(path, opened, config)
    }

    fn model_name(&self, path: &Path) -> Option<String> {
        path.file_stem().map(|stem| stem.to_string_lossy().into_owned())
    }
}

/// What the file holds; `config` is its configuration, if it says one.
fn stored(
    path: &Path,
    (head, file, bytes): (Head, File, u64),
    config: Option<Vec<u8>>,
) -> Result<Stored, Error> {
    let wrong = |cause| Error::Apr { path: path.into(), cause };
    let mut warnings = head.warnings();
    let mut texts = texts(&head.metadata, &mut warnings).map_err(wrong)?;
    let [(_, config_name), ..] = TEXT_KEYS;
    texts.extend(config.map(|config| (config_name.to_owned(), config)));
    let checksum = footer::read(&file, bytes, head.has_footer)
        .map_err(|cause| Error::io("read", path, cause))?;
    let (metadata, header_digest) = (BTreeMap::new(), head.digest);
    let opened = CheckpointFile { path: path.into(), bytes, header_digest, metadata, checksum };
    let tensors = head.into_stored().map_err(wrong)?;
    let texts = TextFiles::Inside { file: path.into(), texts };
    Ok(Stored { texts, files: vec![(opened, file)], tensors, warnings })
}
