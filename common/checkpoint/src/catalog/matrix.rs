//! The matrices outside the layers, as the tensors they are stored in.

use super::{Checkpoint, Tensor};
use crate::family::Part;
use crate::quant::Affine;

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

impl MatrixTensors<'_> {
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        let packed = self.packed.map_or(0, |packed| packed.scales.bytes + packed.biases.bytes);
        self.weight.bytes + packed
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
