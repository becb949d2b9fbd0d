//! Token ids to hidden states.

use std::cell::RefCell;

use cake_checkpoint::{MappedMatrix, MappedTensor, ModelSpec, Watch};

use crate::device::cpu::operand::Table;
use crate::device::on;
use crate::error::Error;
use crate::first::{self, FirstRows};
use crate::loader::Weights;
use crate::matrix::StoredMatrix;
use crate::options::EngineOptions;

/// The embedding matrix, `[vocab_size, hidden_size]`; rows are looked up where they are stored.
pub struct Embedding {
    table: Table,
    multiplier: f32,
    /// What rows carry beside, if anything.
    first: Option<Box<dyn FirstRows>>,
    /// The files that it is read from.
    watch: Watch,
}

impl Embedding {
    /// The embedding of a model; `others` finds what else is outside the layers, by full checkpoint name.
    ///
    /// # Errors
    /// If it is not a matrix as wide as the hidden state in a supported type, another tensor is missing or not what `model`
    /// says, or threads cannot be started.
    pub fn new(
        model: &ModelSpec,
        matrix: MappedMatrix,
        others: &dyn Fn(&str) -> Option<MappedTensor>,
        options: &EngineOptions,
    ) -> Result<Embedding, Error> {
        let mut embedding = Self::of(matrix, model.hidden_size, model.embedding_multiplier)?;
        if model.row_width(0) == model.hidden_size {
            return Ok(embedding);
        }
        let watch = RefCell::new(std::mem::take(&mut embedding.watch));
        let weights: &Weights<'_> =
            &|name| others(name).inspect(|tensor| watch.borrow_mut().add(tensor));
        embedding.first = Some(on(options, first::Load { model, weights, options })?);
        embedding.watch = watch.into_inner();
        embedding.watch.check()?; // Small weights were read just now.
        Ok(embedding)
    }

    /// An embedding of `hidden_size` values per token.
    fn of(matrix: MappedMatrix, hidden_size: usize, multiplier: f32) -> Result<Embedding, Error> {
        let mut watch = Watch::default();
        matrix.parts.iter().for_each(|tensor| watch.add(tensor));
        let table = Table::new(StoredMatrix::new("embedding", matrix, hidden_size)?);
        Ok(Embedding { table, multiplier, first: None, watch })
    }

    /// The rows of `ids` as the first layer takes them, `[ids, row_width]` ([`ModelSpec::row_width`]).
    ///
    /// # Errors
    /// [`Error::NoSuchToken`] for an id past the last row, [`Error::Damaged`] if a file of weights was.
    pub fn forward(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let vocab_size = self.table.rows();
        let mut hidden = Vec::with_capacity(ids.len() * self.table.columns());
        for &token in ids {
            let row = token as usize;
            if row >= vocab_size {
                return Err(Error::NoSuchToken { token, vocab_size });
            }
            let values = self.table.row(row);
            hidden.extend(values.iter().map(|value| value * self.multiplier));
        }
        let rows = match &self.first {
            Some(first) if !ids.is_empty() => first.rows(ids, hidden)?,
            _ => hidden,
        };
        self.watch.check()?;
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::{Affine, Dtype, Encoding, FloatType};

    fn tensor(dtype: Dtype, shape: &[u64]) -> MappedMatrix {
        let elements: u64 = shape.iter().product();
        let bytes = vec![0x3f; (elements * dtype.bits() / 8) as usize];
        let weight = MappedTensor::from_vec(bytes, dtype, shape.to_vec());
        let float = FloatType::of(dtype).unwrap_or(FloatType::F32);
        MappedMatrix { encoding: Encoding::Float(float), parts: vec![weight] }
    }

    /// Three rows of 64: codes in 8 bits, the scale of row `r` is `r`, the bias 0.5.
    fn packed() -> MappedMatrix {
        let floats = |values: [f32; 3]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            MappedTensor::from_vec(bytes, Dtype::F32, vec![3, 1])
        };
        let codes = (0..3 * 64).collect();
        let codes = MappedTensor::from_vec(codes, Dtype::U32, vec![3, 16]);
        let parts = vec![codes, floats([0.0, 1.0, 2.0]), floats([0.5; 3])];
        MappedMatrix { encoding: Encoding::Affine(Affine::Q8), parts }
    }

    #[test]
    fn looks_packed_rows_up() {
        let embedding = Embedding::of(packed(), 64, 1.0).unwrap();
        let rows = embedding.forward(&[2, 0]).unwrap();
        let expected = (128..192).map(|code| 2.0 * code as f32 + 0.5);
        assert_eq!(rows[..64], expected.collect::<Vec<_>>());
        assert_eq!(rows[64..], [0.5; 64]);
        assert!(matches!(Embedding::of(packed(), 128, 1.0), Err(Error::WrongShape { .. })));
        assert!(matches!(Embedding::of(packed(), 32, 1.0), Err(Error::NotWholeGroups { .. })));
    }

    #[test]
    fn looks_rows_up_and_rejects_unknown_tokens() {
        let embedding = Embedding::of(tensor(Dtype::BF16, &[3, 2]), 2, 2.0).unwrap();
        let value = f32::from_bits(0x3f3f_0000);
        assert_eq!(embedding.forward(&[2, 0]).unwrap(), [2.0 * value; 4]);
        let error = embedding.forward(&[3]).unwrap_err();
        assert!(matches!(error, Error::NoSuchToken { token: 3, vocab_size: 3 }));
    }

    #[test]
    fn rejects_other_shapes_and_types() {
        let wrong = Embedding::of(tensor(Dtype::F32, &[3, 4]), 2, 1.0);
        assert!(matches!(wrong, Err(Error::WrongShape { .. })));
        let wrong = Embedding::of(tensor(Dtype::I8, &[3, 2]), 2, 1.0);
        assert!(matches!(wrong, Err(Error::UnsupportedDtype { .. })));
    }
}
