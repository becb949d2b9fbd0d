//! What is read: the files of a checkpoint, and what they hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cake_checkpoint::layout::canonical;
use cake_checkpoint::{
    Checkpoint, CheckpointFile, Checksum, Encoding, Location, ModelSpec, Stored, StoredTensor,
    TextFiles, locate, unstack,
};

use crate::bytes::read_exact_at;
use crate::error::{Error, Unsupported};

/// A checkpoint as something to be read from: whatever model it is, also one that this project does not run.
#[derive(Debug)]
pub struct Source {
    /// Where it was found.
    pub location: Location,
    /// Its files; more may have been added.
    pub files: Vec<SourceFile>,
    /// Its tensors, by file and offset; no name twice, and all bytes of each in its file.
    pub tensors: Vec<StoredTensor>,
    /// Its texts.
    pub texts: TextFiles,
    /// What is odd but does not matter, as sentences.
    pub warnings: Vec<String>,
}

/// A file to be read from.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length when it was opened.
    pub bytes: u64,
    /// Changes whenever what the file says of itself does.
    pub digest: [u8; 32],
    /// What it says of itself as free text.
    pub metadata: BTreeMap<String, String>,
    /// The checksum that it ends in, if it does.
    pub checksum: Option<Checksum>,
    pub(crate) handle: File,
}

/// A matrix that a checkpoint makes of words that files pack otherwise, or of which files have a part as text, and how it is
/// stored.
fn made(checkpoint: &Checkpoint) -> Option<(String, String)> {
    checkpoint.tensors.iter().find_map(|tensor| match tensor.encoding {
        Some(found @ Encoding::Integer(_)) => Some((tensor.name.clone(), found.to_string())),
        Some(found @ Encoding::Bnb(format)) if format.is_nested() => {
            Some((tensor.name.clone(), found.to_string()))
        }
        _ => None,
    })
}

impl Source {
    /// Finds (see [`locate()`]) and opens what `model` says; reads headers alone.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: it is not there, or a file is malformed.
    pub fn open(model: &str) -> Result<Source, Error> {
        let location = locate(model).map_err(cake_checkpoint::Error::from)?;
        let Stored { texts, files, tensors, warnings } =
            location.container.stored(&location.path)?;
        let opened = |(file, handle): (CheckpointFile, File)| {
            let CheckpointFile { path, bytes, header_digest: digest, metadata, checksum } = file;
            SourceFile { path, bytes, digest, metadata, checksum, handle }
        };
        let files = files.into_iter().map(opened).collect();
        Ok(Source { location, files, tensors, texts, warnings })
    }

    /// The same as the model that it is, for what needs to know what its tensors are for.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: the files do not make a model that this project runs.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        Ok(Checkpoint::open_at(self.location.clone())?)
    }

    /// Gives tensors of packed matrices the names and shapes that they have in the checkpoint, and takes those apart that have
    /// those of several experts of this model, which [`Source::checkpoint`] opened: from then on each is by itself, as there.
    /// Those whose matrices are turned stay whole: what is read here are bytes that follow each other.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for one that has not as many slices as there are experts.
    pub fn unstack(&mut self, model: &ModelSpec) -> Result<(), Error> {
        let all = std::mem::take(&mut self.tensors);
        let read = |tensor: &StoredTensor, offset: u64, buffer: &mut [u8]| {
            let file = &self.files[tensor.file];
            read_exact_at(&file.handle, buffer, tensor.offset + offset).map_err(|cause| {
                let (action, path) = ("read", file.path.clone());
                cake_checkpoint::Error::Io { action, path, cause }
            })
        };
        let all = canonical(all, model, &read)?.tensors;
        let (turned, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|tensor| model.is_turned(&tensor.name));
        self.tensors = unstack(others, model).map_err(cake_checkpoint::Error::from)?;
        self.tensors.extend(turned);
        self.tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
        Ok(())
    }

    /// Whether experts are here whose matrices are turned, or rows of gate and up in turn.
    pub(crate) fn is_turned(&self, model: &ModelSpec) -> bool {
        self.tensors.iter().any(|tensor| model.is_turned(&tensor.name))
    }

    /// Refuses a model that has experts whose matrices are turned, for a format or an encoding that has no such.
    ///
    /// # Errors
    /// [`Unsupported::Architecture`]
    pub(crate) fn refuse_turned(
        &self,
        model: &ModelSpec,
        format: &'static str,
    ) -> Result<(), Unsupported> {
        if !model.turns_experts() {
            return Ok(());
        }
        let hint = match model.quantization {
            None => {
                ": its experts are stored column by column, which safetensors for transformers keep, as stored or as f32, f16 or bf16"
            }
            Some(_) => ": its experts are packed, and no other form of them is written",
        };
        Err(Unsupported::Architecture {
            architecture: model.architecture.to_string(),
            format,
            hint,
        })
    }

    /// Refuses a model whose matrices a checkpoint makes of what files have otherwise: what is read here are bytes that follow
    /// each other.
    ///
    /// # Errors
    /// [`Unsupported::Encoding`]
    pub(crate) fn refuse_made(
        checkpoint: &Checkpoint,
        format: &'static str,
    ) -> Result<(), Unsupported> {
        let hint = "; such files are copied as they are by merge and split alone";
        match made(checkpoint) {
            None => Ok(()),
            Some((tensor, found)) => Err(Unsupported::Encoding { tensor, found, format, hint }),
        }
    }

    /// The same for `what` is made of numbers, such as statistics.
    ///
    /// # Errors
    /// [`Unsupported::Across`]
    pub fn refuse_across(checkpoint: &Checkpoint, what: &'static str) -> Result<(), Unsupported> {
        match made(checkpoint) {
            None => Ok(()),
            Some((tensor, found)) => Err(Unsupported::Across { tensor, found, what }),
        }
    }

    /// Refuses files whose tensors are not in the Hub's form, for a format that has them in it: what is read here are bytes as
    /// they lie.
    ///
    /// # Errors
    /// [`Unsupported::Form`]
    pub(crate) fn refuse_other_form(&self, format: &'static str) -> Result<(), Unsupported> {
        match self.location.container.is_in_hub_form() {
            true => Ok(()),
            false => Err(Unsupported::Form { path: self.location.path.clone(), format }),
        }
    }

    /// Adds a file, such as a text that is copied as it is; its index.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened.
    pub fn add(&mut self, path: &Path) -> Result<usize, Error> {
        let failed = |cause| Error::io("read", path, cause);
        let handle = File::open(path).map_err(failed)?;
        let bytes = handle.metadata().map_err(failed)?.len();
        let (path, digest, metadata) = (path.into(), [0; 32], BTreeMap::new());
        self.files.push(SourceFile { path, bytes, digest, metadata, checksum: None, handle });
        Ok(self.files.len() - 1)
    }
}

impl SourceFile {
    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`Error::Shrunk`] if the file ends first, else [`Error::Io`].
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        read_exact_at(&self.handle, buffer, offset).map_err(|cause| match cause.kind() {
            ErrorKind::UnexpectedEof => Error::Shrunk { path: self.path.clone() },
            _ => Error::io("read", &self.path, cause),
        })
    }
}
