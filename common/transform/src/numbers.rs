//! Tensors as what they mean: matrices and vectors of numbers, however they are stored.

use std::collections::HashMap;

use cake_checkpoint::{Checkpoint, Dtype, Encoding, FloatType, Lies, Part, Role, StoredTensor};

use crate::piece::{Order, Stretch};
use crate::source::Source;

/// A tensor of numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// Its name; that of the weight, if it is a matrix in several tensors.
    pub name: String,
    /// How it is stored; `None` if that is not known, and then `parts` has the tensor alone.
    pub encoding: Option<Encoding>,
    /// Whether it is a matrix that is multiplied with: what may be stored in another encoding.
    pub is_matrix: bool,
    /// Whether it is the embedding or the output matrix.
    pub is_end: bool,
    /// Whether the model has no use for it.
    pub is_ignored: bool,
    /// What it is stored in, in the order of [`Encoding::parts`]: indices into [`Source::tensors`].
    pub parts: Vec<usize>,
    /// Dimensions of what it means, outermost first.
    pub shape: Vec<u64>,
    /// How its rows get into the order in which everybody else knows them.
    pub order: Order,
}

impl Numbers {
    /// All that a source has, in the order in which it lies there. With the `checkpoint` that it is, packed matrices are
    /// one tensor each; without, what is packed stays what it is stored in.
    pub fn of(source: &Source, checkpoint: Option<&Checkpoint>) -> Vec<Numbers> {
        let place: HashMap<&str, usize> = source
            .tensors
            .iter()
            .enumerate()
            .map(|(index, it)| (it.name.as_str(), index))
            .collect();
        let known: HashMap<&str, &cake_checkpoint::Tensor> = match checkpoint {
            None => HashMap::new(),
            Some(checkpoint) => {
                checkpoint.tensors.iter().map(|it| (it.name.as_str(), it)).collect()
            }
        };
        let packed = |tensor: &StoredTensor| {
            let said = || known.get(tensor.name.as_str())?.encoding;
            let encoding = tensor.encoding.or_else(said)?;
            if let Encoding::Float(_) = encoding {
                return None;
            }
            let (module, Part::Weight) = Part::split(&tensor.name)? else { return None };
            let part =
                |part: Part| place.get(format!("{module}{}", part.ending()).as_str()).copied();
            // Which parts it has does not depend on its shape.
            let has = |part: &Part| *part == Part::Weight || parts_of(encoding).contains(part);
            let parts =
                Part::ALL.into_iter().filter(has).map(part).collect::<Option<Vec<usize>>>()?;
            Some((encoding, parts))
        };
        let mut is_part = vec![false; source.tensors.len()];
        let packed: Vec<_> = source.tensors.iter().map(packed).collect();
        for (_, parts) in packed.iter().flatten() {
            parts.iter().skip(1).for_each(|&part| is_part[part] = true);
        }
        let tensors = source.tensors.iter().enumerate().zip(packed).zip(is_part);
        tensors
            .filter(|(_, is_part)| !is_part)
            .map(|(((index, tensor), packed), _)| {
                let known = known.get(tensor.name.as_str());
                let (encoding, parts) = match packed {
                    Some((encoding, parts)) => (Some(encoding), parts),
                    None => (FloatType::of(tensor.dtype).map(Encoding::Float), vec![index]),
                };
                Numbers {
                    name: tensor.name.clone(),
                    encoding,
                    is_matrix: known.is_some_and(|known| known.encoding.is_some()),
                    is_end: known.is_some_and(|known| {
                        matches!(known.role, Role::Embedding(_) | Role::Head(_) | Role::Outer)
                    }),
                    is_ignored: known.is_some_and(|known| known.role == Role::Ignored),
                    shape: shape(tensor, encoding),
                    order: order(tensor),
                    parts,
                }
            })
            .collect()
    }

    /// Rows and columns: a vector is one row (one column, where its numbers change places), and whatever has more dimensions as
    /// many rows as all but the last have.
    pub fn matrix_shape(&self) -> [u64; 2] {
        if let (&[count], true) = (&self.shape[..], self.order != Order::Same) {
            return [count, 1];
        }
        match self.shape.split_last() {
            None => [1, 1],
            Some((&columns, rows)) => [rows.iter().product(), columns],
        }
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of all parts.
    pub fn bytes(&self, source: &Source) -> u64 {
        self.parts.iter().map(|&part| source.tensors[part].bytes).sum()
    }

    /// What it is stored in: type and place of each part.
    pub fn stretches(&self, source: &Source) -> Vec<(Dtype, Stretch)> {
        let parts = self.parts.iter().map(|&part| &source.tensors[part]);
        parts
            .map(|tensor| {
                let StoredTensor { file, offset, bytes, dtype, .. } = *tensor;
                (dtype, Stretch { file, offset, bytes })
            })
            .collect()
    }
}

/// How the rows of a tensor get into the order in which everybody else knows them.
fn order(tensor: &StoredTensor) -> Order {
    match (tensor.lies, tensor.shape.first()) {
        (Lies::InPairs { heads }, Some(rows)) if heads > 0 => {
            Order::PairsToHalves { head_rows: rows / heads }
        }
        _ => Order::Same,
    }
}

/// Which parts a matrix in that encoding has.
fn parts_of(encoding: Encoding) -> Vec<Part> {
    // Of any shape of which there is one: groups and blocks are smaller.
    let specs = encoding.parts([1, 1 << 12]).unwrap_or_default();
    specs.into_iter().map(|spec| spec.part).collect()
}

/// What the dimensions of a tensor mean: a packed one has words, or bytes of blocks, where others have numbers.
fn shape(tensor: &StoredTensor, encoding: Option<Encoding>) -> Vec<u64> {
    let mut shape = tensor.shape.clone();
    if let (Some(last), Some(encoding)) = (shape.last_mut(), encoding) {
        *last = encoding.columns(*last); // Whole groups and blocks, as was checked.
    }
    shape
}
