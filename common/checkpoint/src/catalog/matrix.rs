//! The matrices outside the layers, as the tensors they are stored in.

use super::checkpoint::Checkpoint;
use super::tensor::Tensor;
use crate::blob::{encode_matrix, encoded_bytes};
use crate::encoding::{Encoding, Part, Scheme};
use crate::error::Error;
use crate::mapped_matrix::MappedMatrix;

/// The tensors of one matrix.
#[derive(Clone, Debug)]
pub struct MatrixTensors<'a> {
    /// How it is stored.
    pub encoding: Encoding,
    /// Its tensors, in the order of [`Encoding::parts`].
    pub parts: Vec<&'a Tensor>,
}

impl MatrixTensors<'_> {
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Bytes of what [`Checkpoint::encoded_matrix`] makes of it.
    pub fn encoded_bytes(&self, checkpoint: &Checkpoint, scheme: Scheme) -> u64 {
        match self.parts[..] {
            [weight] => encoded_bytes(weight, checkpoint.end_becomes(&weight.name, scheme)),
            _ => self.bytes(),
        }
    }

    /// How [`Checkpoint::encoded_matrix`] stores it.
    pub fn encoded(&self, checkpoint: &Checkpoint, scheme: Scheme) -> Encoding {
        let encoded = match self.parts[..] {
            [weight] => checkpoint.end_becomes(&weight.name, scheme),
            _ => None,
        };
        match (self.encoding, encoded) {
            (Encoding::Float(_), Some(encoded)) => encoded,
            (encoding, _) => encoding,
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
    /// [`Checkpoint::end_becomes`] says. One that is packed, or whose rows are not whole groups, stays.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read or mapped, [`Error::Encode`] or [`Error::Memory`] if it
    /// cannot be encoded.
    pub fn encoded_matrix(
        &self,
        matrix: &MatrixTensors<'_>,
        scheme: Scheme,
    ) -> Result<MappedMatrix, Error> {
        if let &[weight] = &matrix.parts[..]
            && let Some(format) = self.end_becomes(&weight.name, scheme)
            && let Some(encoded) = encode_matrix(self, weight, format)?
        {
            return Ok(encoded);
        }
        let parts = matrix.parts.iter().map(|part| self.map(part)).collect::<Result<_, _>>()?;
        Ok(MappedMatrix { encoding: matrix.encoding, parts })
    }

    /// The matrix whose weight this is, one as wide as the hidden state.
    fn outer_matrix<'a>(&'a self, weight: &'a Tensor) -> MatrixTensors<'a> {
        let shape = [self.config.vocab_size as u64, self.config.hidden_size as u64];
        let module = weight.name.strip_suffix(Part::Weight.ending()).unwrap_or(&weight.name);
        let stored = weight.encoding.and_then(|encoding| {
            let parts = encoding.parts(shape)?.into_iter();
            let tensor = |part: Part| self.tensor(&format!("{module}{}", part.ending()));
            let parts = parts.map(|spec| tensor(spec.part)).collect::<Option<Vec<_>>>()?;
            Some(MatrixTensors { encoding, parts })
        });
        stored.expect("checked when the checkpoint was opened: its matrices are whole")
    }
}
