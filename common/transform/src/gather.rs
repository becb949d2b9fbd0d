//! Tensors as they are, in other files: all in one, or some in each.

use std::collections::BTreeMap;

use cake_checkpoint::StoredTensor;

use crate::error::{Error, PLAIN_FIRST, Unsupported};
use crate::hub::{Files, Filled, Group, lay_out};
use crate::job::{Job, Target};
use crate::piece::Stretch;
use crate::safetensors::TensorToWrite;
use crate::source::Source;
use crate::texts::add_texts;

/// What files say for whom they are, where the source does not: for PyTorch, and everybody who reads the same.
const FORMAT: (&str, &str) = ("format", "pt");

/// All tensors in one safetensors file: that file alone, or in a directory with the model's texts.
///
/// # Errors
/// [`Error::Io`] if a text cannot be opened; [`Unsupported::Encoding`] for a tensor that safetensors have no way to say.
pub fn merge(source: Source, target: Target) -> Result<Job, Error> {
    gather(source, target, u64::MAX)
}

/// The tensors in several safetensors files with an index, in a directory with the model's texts: in the order in which
/// the source has them, and as many in each as it may have with `most_bytes` of them; a larger tensor has a file of its
/// own, as with the reference. One file needs no index.
///
/// ```
/// use cake_checkpoint::Checkpoint;
/// use cake_transform::{Observer, Options, Source, Target, split};
///
/// struct Shown;
///
/// impl Observer for Shown {
///     fn progress(&self, done: u64, total: u64) {
///         println!("{done} of {total} bytes");
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/llama");
/// let home = tempfile::tempdir()?;
/// let target = home.path().join("parts");
/// let job = split(Source::open(model)?, Target::Directory(target.clone()), 100_000)?;
/// job.run(Options { force: false, threads: 1 }, &Shown)?;
/// assert!(target.join("model.safetensors.index.json").exists());
/// let name = target.to_str().ok_or("a path that is no text")?;
/// let (parts, whole) = (Checkpoint::open(name)?, Checkpoint::open(model)?);
/// assert_eq!(parts.tensors.len(), whole.tensors.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`merge`].
pub fn split(source: Source, target: Target, most_bytes: u64) -> Result<Job, Error> {
    gather(source, target, most_bytes)
}

fn gather(mut source: Source, target: Target, most_bytes: u64) -> Result<Job, Error> {
    source.refuse_other_form("safetensors")?;
    for tensor in &source.tensors {
        if let Some(found) = tensor.encoding.filter(|encoding| encoding.is_only_said()) {
            let (tensor, found) = (tensor.name.clone(), found.to_string());
            let (format, hint) = ("safetensors", PLAIN_FIRST);
            return Err(Unsupported::Encoding { tensor, found, format, hint }.into());
        }
    }
    let files = Files { metadata: metadata(&source), most_bytes, always_index: false };
    let groups = source.tensors.iter().map(as_stored).collect();
    let (mut outputs, mut pieces) = lay_out(groups, files);
    if let Target::Directory(_) = target {
        add_texts(&mut source, &[], &mut outputs, &mut pieces)?;
    }
    Ok(Job { source, target, outputs, pieces })
}

/// Most bytes of such texts, in all: each output has them.
const MOST_METADATA_BYTES: usize = 64 << 10;

/// What all files of the source say of themselves; of much, for whom they are alone.
fn metadata(source: &Source) -> BTreeMap<String, String> {
    let is_said = |(key, value): &(&String, &String)| {
        source.files.iter().all(|file| file.metadata.get(*key) == Some(value))
    };
    let first = source.files.iter().take(1).flat_map(|file| &file.metadata);
    let mut metadata: BTreeMap<String, String> =
        first.filter(is_said).map(|(key, value)| (key.clone(), value.clone())).collect();
    let (key, value) = FORMAT;
    if metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
        > MOST_METADATA_BYTES
    {
        metadata.retain(|said, value| said == key && value.len() <= MOST_METADATA_BYTES);
    }
    metadata.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    metadata
}

/// A tensor, copied.
pub(crate) fn as_stored(tensor: &StoredTensor) -> Group {
    let StoredTensor { name, file, dtype, shape, offset, bytes, .. } = tensor.clone();
    let tensors = vec![TensorToWrite { name, dtype, shape, bytes }];
    Group { tensors, filled: vec![Filled::Copy(Stretch { file, offset, bytes })] }
}
