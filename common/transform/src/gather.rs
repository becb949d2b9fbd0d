//! Tensors as they are, in other files: all in one, or some in each.

use cake_checkpoint::{Encoding, StoredTensor};

use crate::error::{Error, PLAIN_FIRST, Unsupported};
use crate::hub::{Files, Filled, Group, lay_out};
use crate::job::{Job, Target};
use crate::piece::Stretch;
use crate::safetensors::TensorToWrite;
use crate::source::Source;
use crate::texts::add_texts;

/// For PyTorch, and everybody who reads the same.
const FILES: Files = Files { format: "pt", most_bytes: u64::MAX, always_index: false };

/// All tensors in one safetensors file: that file alone, or in a directory with the model's texts.
///
/// # Errors
/// [`Error::Io`] if a text cannot be opened; [`Unsupported::Encoding`] for a tensor that safetensors have no way to say.
pub fn merge(source: Source, target: Target) -> Result<Job, Error> {
    gather(source, target, FILES)
}

/// The tensors in several safetensors files with an index, in a directory with the model's texts: in the order in which
/// the source has them, and as many in each as it may have with `most_bytes` of them; a larger tensor has a file of its
/// own, as with the reference. One file needs no index.
///
/// # Errors
/// As [`merge`].
pub fn split(source: Source, target: Target, most_bytes: u64) -> Result<Job, Error> {
    gather(source, target, Files { most_bytes, ..FILES })
}

fn gather(mut source: Source, target: Target, files: Files) -> Result<Job, Error> {
    for tensor in &source.tensors {
        if let Some(found @ (Encoding::Ggml(_) | Encoding::Apr(_))) = tensor.encoding {
            let (tensor, found) = (tensor.name.clone(), found.to_string());
            let (format, hint) = ("safetensors", PLAIN_FIRST);
            return Err(Unsupported::Encoding { tensor, found, format, hint }.into());
        }
    }
    let groups = source.tensors.iter().map(as_stored).collect();
    let (mut outputs, mut pieces) = lay_out(groups, files);
    if let Target::Directory(_) = target {
        add_texts(&mut source, &[], &mut outputs, &mut pieces)?;
    }
    Ok(Job { source, target, outputs, pieces })
}

/// A tensor, copied.
pub(crate) fn as_stored(tensor: &StoredTensor) -> Group {
    let StoredTensor { name, file, dtype, shape, offset, bytes, .. } = tensor.clone();
    let tensors = vec![TensorToWrite { name, dtype, shape, bytes }];
    Group { tensors, filled: Filled::Copy(Stretch { file, offset, bytes }) }
}
