//! Token ids to hidden states.

use cake_checkpoint::{MappedMatrix, Watch};

use crate::error::Error;
use crate::kernel::Tier;
use crate::matrix::StoredMatrix;

/// The embedding matrix, `[vocab_size, hidden_size]`; rows are looked up where they are stored.
pub struct Embedding {
    matrix: StoredMatrix,
    tier: Tier,
    /// The files that it is read from.
    watch: Watch,
}

impl Embedding {
    /// An embedding of `hidden_size` values per token.
    ///
    /// # Errors
    /// If it is not a matrix of that width in a supported type.
    pub fn new(matrix: MappedMatrix, hidden_size: usize) -> Result<Embedding, Error> {
        let mut watch = Watch::default();
        matrix.tensors().for_each(|tensor| watch.add(tensor));
        let matrix = StoredMatrix::new("embedding", matrix, hidden_size)?;
        Ok(Embedding { matrix, tier: Tier::detect(), watch })
    }

    /// The rows of `ids`, `[ids, hidden_size]`.
    ///
    /// # Errors
    /// [`Error::NoSuchToken`] for an id past the last row, [`Error::Damaged`] if a file of weights was.
    pub fn forward(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let vocab_size = self.matrix.rows();
        let mut hidden = Vec::with_capacity(ids.len() * self.matrix.columns());
        for &token in ids {
            let row = token as usize;
            if row >= vocab_size {
                return Err(Error::NoSuchToken { token, vocab_size });
            }
            hidden.extend(self.matrix.widen(self.tier, row..row + 1));
        }
        self.watch.check()?;
        Ok(hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::{Affine, Dtype, MappedPacked, MappedTensor};

    fn tensor(dtype: Dtype, shape: &[u64]) -> MappedMatrix {
        let elements: u64 = shape.iter().product();
        let bytes = vec![0x3f; (elements * dtype.bits() / 8) as usize];
        let weight = MappedTensor::from_vec(bytes, dtype, shape.to_vec());
        MappedMatrix { weight, packed: None }
    }

    /// Three rows of 64: codes in 8 bits, the scale of row `r` is `r`, the bias 0.5.
    fn packed() -> MappedMatrix {
        let floats = |values: [f32; 3]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            MappedTensor::from_vec(bytes, Dtype::F32, vec![3, 1])
        };
        let codes = (0..3 * 64).collect();
        MappedMatrix {
            weight: MappedTensor::from_vec(codes, Dtype::U32, vec![3, 16]),
            packed: Some(MappedPacked {
                scales: floats([0.0, 1.0, 2.0]),
                biases: floats([0.5; 3]),
                format: Affine::Q8,
            }),
        }
    }

    #[test]
    fn looks_packed_rows_up() {
        let embedding = Embedding::new(packed(), 64).unwrap();
        let rows = embedding.forward(&[2, 0]).unwrap();
        let expected = (128..192).map(|code| 2.0 * code as f32 + 0.5);
        assert_eq!(rows[..64], expected.collect::<Vec<_>>());
        assert_eq!(rows[64..], [0.5; 64]);
        assert!(matches!(Embedding::new(packed(), 128), Err(Error::WrongShape { .. })));
        assert!(matches!(Embedding::new(packed(), 32), Err(Error::NotWholeGroups { .. })));
    }

    #[test]
    fn looks_rows_up_and_rejects_unknown_tokens() {
        let embedding = Embedding::new(tensor(Dtype::BF16, &[3, 2]), 2).unwrap();
        let value = f32::from_bits(0x3f3f_0000);
        assert_eq!(embedding.forward(&[2, 0]).unwrap(), [value; 4]);
        let error = embedding.forward(&[3]).unwrap_err();
        assert!(matches!(error, Error::NoSuchToken { token: 3, vocab_size: 3 }));
    }

    #[test]
    fn rejects_other_shapes_and_types() {
        let wrong = Embedding::new(tensor(Dtype::F32, &[3, 4]), 2);
        assert!(matches!(wrong, Err(Error::WrongShape { .. })));
        let wrong = Embedding::new(tensor(Dtype::I8, &[3, 2]), 2);
        assert!(matches!(wrong, Err(Error::UnsupportedDtype { .. })));
    }
}
