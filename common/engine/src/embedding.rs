//! Token ids to hidden states.

use cake_checkpoint::MappedTensor;

use crate::error::Error;
use crate::kernel::FloatType;
use crate::linear::float_type;

/// The embedding matrix, `[vocab_size, hidden_size]`; rows are looked up where they are stored.
pub struct Embedding {
    tensor: MappedTensor,
    float: FloatType,
    vocab_size: usize,
    hidden_size: usize,
}

impl Embedding {
    /// An embedding of `hidden_size` values per token.
    ///
    /// # Errors
    /// If the tensor is not a matrix of that width in a supported type.
    pub fn new(tensor: MappedTensor, hidden_size: usize) -> Result<Embedding, Error> {
        const NAME: &str = "embedding";
        let float = float_type(NAME, &tensor)?;
        let vocab_size = tensor.shape().first().copied().unwrap_or(0);
        if tensor.shape() != [vocab_size, hidden_size as u64] {
            return Err(Error::WrongShape {
                name: NAME.to_owned(),
                expected: vec![vocab_size, hidden_size as u64],
                found: tensor.shape().to_vec(),
            });
        }
        Ok(Embedding { tensor, float, vocab_size: vocab_size as usize, hidden_size })
    }

    /// The rows of `ids`, `[ids, hidden_size]`.
    ///
    /// # Errors
    /// [`Error::NoSuchToken`] for an id past the last row.
    pub fn forward(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let row_bytes = self.hidden_size * self.float.bytes();
        let mut hidden = Vec::with_capacity(ids.len() * self.hidden_size);
        for &token in ids {
            let vocab_size = self.vocab_size;
            if token as usize >= vocab_size {
                return Err(Error::NoSuchToken { token, vocab_size });
            }
            let row = &self.tensor.bytes()[token as usize * row_bytes..][..row_bytes];
            hidden.extend(self.float.widen(row));
        }
        Ok(hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::Dtype;

    fn tensor(dtype: Dtype, shape: &[u64]) -> MappedTensor {
        let elements: u64 = shape.iter().product();
        let bytes = vec![0x3f; (elements * dtype.bits() / 8) as usize];
        MappedTensor::from_vec(bytes, dtype, shape.to_vec())
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
