//! Tensors as they are, in other files: all in one, or some in each.

use std::collections::BTreeMap;

use cake_checkpoint::StoredTensor;
use cake_checkpoint::container::safetensors::{INDEX, SINGLE};

use crate::error::Error;
use crate::job::{Job, Output, Target};
use crate::piece::{Piece, Place, Stretch};
use crate::safetensors::{FileLayout, TensorToWrite, index_json};
use crate::source::Source;
use crate::texts::add_texts;

/// What the metadata of the files says: for PyTorch and everybody who reads the same.
const FORMAT: &str = "pt";

/// All tensors in one safetensors file: that file alone, or in a directory with the model's texts.
///
/// # Errors
/// [`Error::Io`] if a text cannot be opened.
pub fn merge(mut source: Source, target: Target) -> Result<Job, Error> {
    let (mut outputs, mut pieces) = (Vec::new(), Vec::new());
    let tensors: Vec<usize> = (0..source.tensors.len()).collect();
    add_file(&source, SINGLE.to_owned(), &tensors, &mut outputs, &mut pieces);
    if let Target::Directory(_) = target {
        add_texts(&mut source, &[], &mut outputs, &mut pieces)?;
    }
    Ok(Job { source, target, outputs, pieces })
}

/// The tensors in several safetensors files with an index, in a directory with the model's texts: in the order in which
/// the source has them, and as many in each as it may have with `most_bytes` of them; a larger tensor has a file of its
/// own, as with the reference. One file needs no index.
///
/// # Errors
/// As [`merge`].
pub fn split(mut source: Source, target: Target, most_bytes: u64) -> Result<Job, Error> {
    let mut files: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0u64;
    for (index, tensor) in source.tensors.iter().enumerate() {
        if filled > 0 && filled + tensor.bytes > most_bytes {
            files.push(Vec::new());
            filled = 0;
        }
        filled += tensor.bytes;
        files.last_mut().expect("there is one from the beginning").push(index);
    }
    let (mut outputs, mut pieces) = (Vec::new(), Vec::new());
    let mut map = BTreeMap::new();
    for (number, tensors) in files.iter().enumerate() {
        let name = match files.len() {
            1 => SINGLE.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        map.extend(tensors.iter().map(|&it| (source.tensors[it].name.clone(), name.clone())));
        add_file(&source, name, tensors, &mut outputs, &mut pieces);
    }
    if files.len() > 1 {
        let bytes = index_json(&map, source.tensors.iter().map(|tensor| tensor.bytes).sum());
        let place = Place { output: outputs.len(), offset: 0 };
        outputs.push(Output { name: INDEX.to_owned(), bytes: bytes.len() as u64 });
        pieces.push(Piece::Known { bytes, place });
    }
    add_texts(&mut source, &[], &mut outputs, &mut pieces)?;
    Ok(Job { source, target, outputs, pieces })
}

/// Adds a file with these tensors of the source, which are copied in the order in which they lie there.
fn add_file(
    source: &Source,
    name: String,
    tensors: &[usize],
    outputs: &mut Vec<Output>,
    pieces: &mut Vec<Piece>,
) {
    let written: Vec<TensorToWrite> =
        tensors.iter().map(|&index| as_stored(&source.tensors[index])).collect();
    let layout = FileLayout::new(&written, FORMAT);
    let output = outputs.len();
    outputs.push(Output { name, bytes: layout.bytes });
    pieces.push(Piece::Known { bytes: layout.header, place: Place { output, offset: 0 } });
    for (&index, offset) in tensors.iter().zip(layout.offsets) {
        let StoredTensor { file, offset: from, bytes, .. } = source.tensors[index];
        let from = Stretch { file, offset: from, bytes };
        pieces.push(Piece::Copy { from, place: Place { output, offset } });
    }
}

fn as_stored(tensor: &StoredTensor) -> TensorToWrite {
    let StoredTensor { name, dtype, shape, bytes, .. } = tensor.clone();
    TensorToWrite { name, dtype, shape, bytes }
}
