//! A model in GGUF files.

use std::collections::BTreeMap;
use std::path::Path;

use super::files::{self, Opened};
use super::model::{Model, tensors};
use super::tokenizer;
use crate::container::contents::{CheckpointFile, Contents, Stored};
use crate::container::format::Container;
use crate::container::tensor::StoredTensor;
use crate::container::texts::TextFiles;
use crate::error::Error;
use crate::model::ModelSpec;

/// What the configuration is called among the texts.
const CONFIG: &str = "config.json";

/// GGUF files.
#[derive(Debug)]
pub struct Gguf;

impl Container for Gguf {
    fn recognise(&self, path: &Path) -> bool {
        files::is_one(path) || (path.is_dir() && files::has_some(path))
    }

    fn open(&self, path: &Path) -> Result<Contents, Error> {
        let opened = files::open(path)?;
        let model = Model::of(&opened)?;
        let mut spec = ModelSpec::parse(&model.config)
            .map_err(|cause| Error::Config { path: opened[0].path.clone(), cause })?;
        model.form(&opened, &mut spec);
        let tensors = tensors(&opened, Some(&model))?;
        let texts = texts(&opened[0], Some(model.config))?;
        let warnings = tokenizer::cut_unsaid(&opened[0].head.metadata).into_iter().collect();
        Ok(Contents { spec, stored: stored(opened, tensors, texts, warnings) })
    }

    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        let opened = files::open(path)?;
        let mut warnings = Vec::new();
        let mut told = |error: Error| warnings.push(error.to_string());
        let model = Model::of(&opened).map_err(&mut told).ok();
        let tensors = match tensors(&opened, model.as_ref()) {
            Ok(tensors) => tensors,
            Err(error) => {
                told(error);
                self::tensors(&opened, None)?
            }
        };
        let config = model.map(|model| model.config);
        let texts = texts(&opened[0], config.clone()).or_else(|error| {
            told(error);
            Ok::<_, Error>(inside(&opened[0], config, Vec::new()))
        })?;
        Ok(stored(opened, tensors, texts, warnings))
    }

    /// Rows may lie in pairs, and norms are folded.
    fn is_in_hub_form(&self) -> bool {
        false
    }

    fn model_name(&self, path: &Path) -> Option<String> {
        if path.is_dir() { None } else { files::model_name(path) }
    }
}

/// What the files hold.
fn stored(
    opened: Vec<Opened>,
    tensors: Vec<StoredTensor>,
    texts: TextFiles,
    warnings: Vec<String>,
) -> Stored {
    let file = |Opened { path, head, file, bytes }: Opened| {
        let (header_digest, metadata, checksum) = (head.digest, BTreeMap::new(), None);
        (CheckpointFile { path, bytes, header_digest, metadata, checksum }, file)
    };
    Stored { texts, files: opened.into_iter().map(file).collect(), tensors, warnings }
}

/// The texts that are made of what the first file says.
fn texts(first: &Opened, config: Option<Vec<u8>>) -> Result<TextFiles, Error> {
    let made = first.head.texts().map_err(|cause| first.wrong(cause))?;
    Ok(inside(first, config, made))
}

fn inside(first: &Opened, config: Option<Vec<u8>>, made: Vec<(String, Vec<u8>)>) -> TextFiles {
    let config = config.map(|config| (CONFIG.to_owned(), config));
    TextFiles::Inside { file: first.path.clone(), texts: made.into_iter().chain(config).collect() }
}
