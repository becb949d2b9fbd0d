//! The matrices outside the layers, as the tensors they are stored in.

use super::{Checkpoint, Tensor};
use crate::blob::{EncodedMatrix, encode_matrix, encoded_bytes};
use crate::encoding::{Affine, Scheme};
use crate::error::Error;
use crate::mapped::MappedTensor;
use crate::model::Part;

/// The tensors of one matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixTensors<'a> {
    /// The numbers `[rows, columns]`; of a packed matrix the codes, U32.
    pub weight: &'a Tensor,
    /// What else a packed matrix has.
    pub packed: Option<PackedTensors<'a>>,
}

/// What a packed matrix has beside its codes.
#[derive(Clone, Copy, Debug)]
pub struct PackedTensors<'a> {
    /// `[rows, columns / group]`, F32, F16 or BF16.
    pub scales: &'a Tensor,
    /// As the scales.
    pub biases: &'a Tensor,
    /// How the codes are packed.
    pub format: Affine,
}

/// A matrix in memory or mapped, ready to be computed with.
#[derive(Clone, Debug)]
pub struct MappedMatrix {
    /// The numbers `[rows, columns]`; of a packed matrix the codes, U32.
    pub weight: MappedTensor,
    /// What else a packed matrix has.
    pub packed: Option<MappedPacked>,
}

/// What a packed matrix has beside its codes.
#[derive(Clone, Debug)]
pub struct MappedPacked {
    /// `[rows, columns / group]`, F32, F16 or BF16.
    pub scales: MappedTensor,
    /// As the scales.
    pub biases: MappedTensor,
    /// How the codes are packed.
    pub format: Affine,
}

impl MappedMatrix {
    /// All of its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &MappedTensor> {
        let packed = self.packed.iter().flat_map(|packed| [&packed.scales, &packed.biases]);
        std::iter::once(&self.weight).chain(packed)
    }

    /// The same to be replaced by copies.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut MappedTensor> {
        let packed = self.packed.iter_mut();
        let packed = packed.flat_map(|packed| [&mut packed.scales, &mut packed.biases]);
        std::iter::once(&mut self.weight).chain(packed)
    }
}

impl MatrixTensors<'_> {
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        let packed = self.packed.map_or(0, |packed| packed.scales.bytes + packed.biases.bytes);
        self.weight.bytes + packed
    }

    /// Bytes of what [`Checkpoint::encoded_matrix`] makes of it.
    pub fn encoded_bytes(&self, encoding: Scheme) -> u64 {
        match self.packed {
            Some(_) => self.bytes(),
            None => encoded_bytes(self.weight, encoding.of_ends()),
        }
    }
}

impl Checkpoint {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The embedding, `[vocab_size, hidden_size]`, plain or packed.
    pub fn embedding_matrix(&self) -> MatrixTensors<'_> {
        self.outer_matrix(self.embedding())
    }

    /// The output head, `[vocab_size, hidden_size]`, plain or packed; `None` when the embedding
    /// serves as head.
    pub fn head_matrix(&self) -> Option<MatrixTensors<'_>> {
        self.head().map(|weight| self.outer_matrix(weight))
    }

    /// Embedding or head as the master computes with it: mapped as stored, or encoded into memory as
    /// [`Scheme::of_ends`] says. One that is packed, or whose rows are not whole groups, stays.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read or mapped, [`Error::Encode`] or [`Error::Memory`] if it
    /// cannot be encoded.
    pub fn encoded_matrix(
        &self,
        matrix: &MatrixTensors<'_>,
        encoding: Scheme,
    ) -> Result<MappedMatrix, Error> {
        if let Some(packed) = matrix.packed {
            let (scales, biases) = (self.map(packed.scales)?, self.map(packed.biases)?);
            let packed = Some(MappedPacked { scales, biases, format: packed.format });
            return Ok(MappedMatrix { weight: self.map(matrix.weight)?, packed });
        }
        if let Some(format) = encoding.of_ends()
            && let Some(encoded) = encode_matrix(self, matrix.weight, format)?
        {
            let EncodedMatrix { codes, scales, biases } = encoded;
            let packed = Some(MappedPacked { scales, biases, format });
            return Ok(MappedMatrix { weight: codes, packed });
        }
        Ok(MappedMatrix { weight: self.map(matrix.weight)?, packed: None })
    }

    /// A matrix as wide as the hidden state.
    fn outer_matrix<'a>(&'a self, weight: &'a Tensor) -> MatrixTensors<'a> {
        let module = weight.name.strip_suffix(Part::Weight.ending()).unwrap_or(&weight.name);
        let part = |part: Part| self.tensor(&format!("{module}{}", part.ending()));
        let packed = part(Part::Scales).zip(part(Part::Biases)).and_then(|(scales, biases)| {
            // Both divisions are exact: the shapes were checked when the checkpoint was opened.
            let columns = self.config.hidden_size as u64;
            let bits = weight.shape.get(1)? * 32 / columns;
            let format = Affine::new(bits, columns.checked_div(*scales.shape.get(1)?)?)?;
            Some(PackedTensors { scales, biases, format })
        });
        MatrixTensors { weight, packed }
    }
}
