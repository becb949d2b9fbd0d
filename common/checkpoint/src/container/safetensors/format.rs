//! A model in safetensors files: a directory of them with `config.json`, one of them, or their index.

use std::io::ErrorKind;
use std::path::Path;

use super::header::TensorInfo;
use super::weights::{OpenFile, gather, is_named};
use crate::container::contents::{CheckpointFile, Contents, Stored};
use crate::container::format::Container;
use crate::container::tensor::{Lies, StoredTensor};
use crate::container::texts::TextFiles;
use crate::error::Error;
use crate::file::{directory_of, read_first};
use crate::model::{MAX_CONFIG_BYTES, ModelSpec};

/// The file that says what the model is.
pub const CONFIG: &str = "config.json";

/// The file in which NVIDIA's Model Optimizer says how matrices are stored; older ones have it alone.
const QUANTIZATION: &str = "hf_quant_config.json";

/// Safetensors files, as the Hub has them.
#[derive(Debug)]
pub struct Safetensors;

impl Container for Safetensors {
    fn recognise(&self, path: &Path) -> bool {
        is_named(path)
    }

    fn open(&self, path: &Path) -> Result<Contents, Error> {
        let directory = directory_of(path);
        let config_path = directory.join(CONFIG);
        // One byte more than allowed is enough to tell that it is too long.
        let json = read_first(&config_path, MAX_CONFIG_BYTES as u64 + 1)
            .map_err(|cause| Error::io("read", &config_path, cause))?;
        let beside = directory.join(QUANTIZATION);
        let (spec, path_of_fault) = match read_first(&beside, MAX_CONFIG_BYTES as u64 + 1) {
            // What the configuration alone is well without is the other file's fault.
            Ok(said) => match ModelSpec::parse_beside(&json, &said) {
                Err(cause) if ModelSpec::parse(&json).is_ok() => (Err(cause), beside),
                spec => (spec, config_path),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (ModelSpec::parse(&json), config_path)
            }
            Err(error) => return Err(Error::io("read", &beside, error)),
        };
        let spec = spec.map_err(|cause| Error::Config { path: path_of_fault, cause })?;
        let stored = stored(path, Some(&spec))?;
        let spec = spec.of_files(&json, &stored.names());
        Ok(Contents { spec, stored })
    }

    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        stored(path, None)
    }
}

/// The files that a path means, and what they hold; `spec` says what is needed of it, if that is known.
fn stored(path: &Path, spec: Option<&ModelSpec>) -> Result<Stored, Error> {
    let mut warnings = Vec::new();
    let weights = gather(path, spec, &mut warnings)?;
    let place = |(file, tensor): (usize, TensorInfo)| {
        let TensorInfo { name, dtype, shape, start, end } = tensor;
        let offset = weights.files[file].header.data_start + start;
        StoredTensor {
            name,
            file,
            dtype,
            shape,
            offset,
            bytes: end - start,
            lies: Lies::Together,
            encoding: None,
        }
    };
    let tensors = weights.tensors.into_iter().map(place).collect();
    let opened = |file: OpenFile| {
        let OpenFile { path, handle, bytes, header, .. } = file;
        let (header_digest, metadata) = (header.digest, header.metadata.unwrap_or_default());
        (CheckpointFile { path, bytes, header_digest, metadata, checksum: None }, handle)
    };
    let files = weights.files.into_iter().map(opened).collect();
    Ok(Stored { texts: TextFiles::Directory(directory_of(path)), files, tensors, warnings })
}
