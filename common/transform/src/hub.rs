//! Safetensors files as the Hub has them: one, or several with an index.

use std::collections::BTreeMap;
use std::ops::Range;

use cake_checkpoint::container::safetensors::{INDEX, SINGLE};

use crate::job::Output;
use crate::piece::{Piece, Place, Rows, Stretch};
use crate::safetensors::{FileLayout, TensorToWrite, index_json};

/// Tensors that come from the same place, and stay in one file.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) tensors: Vec<TensorToWrite>,
    /// Several fill equal slices of each tensor, one after the other.
    pub(crate) filled: Vec<Filled>,
}

/// What tensors are filled with.
#[derive(Clone, Debug)]
pub(crate) enum Filled {
    /// One tensor, with bytes as they are.
    Copy(Stretch),
    /// As many tensors as the form has parts; their places are not known yet.
    Rows(Rows),
}

/// How files are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Files {
    /// Free text in each of them, of which `format` says for whom they are.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Most bytes of tensors in one; what is larger by itself has one of its own.
    pub(crate) most_bytes: u64,
    /// Whether there is an index of a single file, too.
    pub(crate) always_index: bool,
}

/// Lays groups out in files, in their order, and says what fills these.
pub(crate) fn lay_out(groups: Vec<Group>, files: Files) -> (Vec<Output>, Vec<Piece>) {
    let ranges = ranges(&groups, files.most_bytes);
    let (mut outputs, mut pieces) = (Vec::new(), Vec::new());
    let (mut map, mut total) = (BTreeMap::new(), 0);
    for (number, range) in ranges.iter().enumerate() {
        let name = match ranges.len() {
            1 => SINGLE.to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let inside = &groups[range.clone()];
        let tensors: Vec<TensorToWrite> =
            inside.iter().flat_map(|group| group.tensors.iter().cloned()).collect();
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), name.clone())));
        total += tensors.iter().map(|tensor| tensor.bytes).sum::<u64>();
        let FileLayout { header, offsets, bytes } = FileLayout::new(&tensors, &files.metadata);
        let output = outputs.len();
        outputs.push(Output { name, bytes });
        pieces.push(Piece::Known { bytes: header, place: Place { output, offset: 0 } });
        let mut places = offsets.into_iter().map(|offset| Place { output, offset });
        for Group { tensors, filled } in inside {
            let places: Vec<Place> = places.by_ref().take(tensors.len()).collect();
            for (number, one) in filled.iter().enumerate() {
                let slice = |(place, tensor): (&Place, &TensorToWrite)| {
                    let before = tensor.bytes / filled.len() as u64 * number as u64;
                    Place { offset: place.offset + before, ..*place }
                };
                let places: Vec<Place> = places.iter().zip(tensors).map(slice).collect();
                pieces.push(match one {
                    Filled::Copy(from) => Piece::Copy { from: *from, place: places[0] },
                    Filled::Rows(rows) => Piece::Rows(Rows { places, ..rows.clone() }),
                });
            }
        }
    }
    if ranges.len() > 1 || files.always_index {
        let bytes = index_json(&map, total);
        let place = Place { output: outputs.len(), offset: 0 };
        outputs.push(Output { name: INDEX.to_owned(), bytes: bytes.len() as u64 });
        pieces.push(Piece::Known { bytes, place });
    }
    (outputs, pieces)
}

/// Which groups are in which file; at least one file.
fn ranges(groups: &[Group], most_bytes: u64) -> Vec<Range<usize>> {
    let mut starts = vec![0];
    let mut filled = 0u64;
    for (index, group) in groups.iter().enumerate() {
        let bytes: u64 = group.tensors.iter().map(|tensor| tensor.bytes).sum();
        if filled > 0 && filled.saturating_add(bytes) > most_bytes {
            starts.push(index);
            filled = 0;
        }
        filled += bytes;
    }
    let ends = starts.iter().skip(1).copied().chain([groups.len()]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}
