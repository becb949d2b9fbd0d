//! How much of a layer's weights each encoding loses, by a sample of their rows.

use rayon::prelude::*;

use super::tensor::is_packable;
use crate::catalog::{Checkpoint, Tensor};
use crate::encoding::{Encoding, FloatType, Scheme, there_and_back};
use crate::error::Error;

/// Rows that are looked at of each matrix, as far apart as they can be.
const ROWS: u64 = 8;
/// Matrices that are looked at of each layer, likewise: some have thousands of experts.
const MATRICES: usize = 24;

impl Checkpoint {
    /// The squared error that `scheme` makes in the matrices of a layer, for each squared weight, both as columns count: the
    /// mean over up to 24 matrices that it changes, each by up to 8 of its rows. Nothing where it changes none.
    ///
    /// What an error of a layer does to answers is not in it: all layers, and all matrices of one, count the same.
    ///
    /// # Errors
    /// [`Error::Io`] if weights cannot be read, [`Error::Encode`] if they cannot be encoded.
    pub fn encoding_loss(&self, layer: usize, scheme: Scheme) -> Result<f64, Error> {
        let tensors = self.layer_tensors(layer).into_iter();
        let each = tensors.filter_map(|tensor| Some((tensor, self.becomes(&tensor.name, scheme)?)));
        let changed: Vec<_> = each.filter(|(tensor, to)| is_packable(tensor, *to)).collect();
        let apart = changed.len().div_ceil(MATRICES).max(1);
        let loss_of = |(tensor, to): (&Tensor, Encoding)| -> Result<Option<f64>, Error> {
            let (&[rows, columns], Some(float)) = (&tensor.shape[..], FloatType::of(tensor.dtype))
            else {
                return Ok(None); // None that is packable.
            };
            let (mut missed, mut all) = (0.0, 0.0);
            let counts = self.counts(tensor);
            for row in (0..rows).step_by(rows.div_ceil(ROWS).max(1) as usize) {
                let mut bytes = vec![0; columns as usize * float.bytes()];
                self.read_at(tensor, row * bytes.len() as u64, &mut bytes)?;
                let mut weights = vec![0.0; columns as usize];
                float.widen(&bytes, &mut weights);
                let found = there_and_back(to, float, &weights, counts.as_deref());
                let found = found.map_err(|cause| Error::Encode {
                    tensor: tensor.name.clone(),
                    cause: cause.after((row * columns) as usize),
                })?;
                for (column, (weight, found)) in weights.iter().zip(&found).enumerate() {
                    let counts = counts.as_ref().map_or(1.0, |counts| f64::from(counts[column]));
                    missed += counts * (f64::from(*weight) - f64::from(*found)).powi(2);
                    all += counts * f64::from(*weight).powi(2);
                }
            }
            Ok(Some(if all > 0.0 { missed / all } else { 0.0 }))
        };
        // Summed in one order, however many threads there are.
        let losses = changed.into_par_iter().step_by(apart).map(loss_of);
        let losses = losses.collect::<Result<Vec<Option<f64>>, Error>>()?;
        let count = losses.iter().flatten().count();
        // Of none, the sum is a negative zero.
        Ok(losses.iter().flatten().fold(0.0, |all, loss| all + loss) / count.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden;

    #[test]
    fn narrower_codes_lose_more_and_what_stays_loses_nothing() {
        let checkpoint = golden("llama3-tied");
        for layer in 0..checkpoint.config.layers.len() {
            let loss = |scheme| checkpoint.encoding_loss(layer, scheme).unwrap();
            let all = Scheme::ALL.map(loss);
            assert_eq!(all[0], 0.0);
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
            // A bit more is a quarter of the squared error, for steps between the same edges.
            let [_, q8, q6, q5, q4, _] = all;
            for (wider, narrower, steps) in [(q6, q5, 2.0), (q5, q4, 2.0), (q8, q6, 4.0)] {
                let ratio: f64 = narrower / wider / (steps * steps);
                assert!((0.5..2.0).contains(&ratio), "{layer}: {ratio}");
            }
        }
        // Already packed.
        assert_eq!(golden("qwen2-mlx4").encoding_loss(0, Scheme::Q4).unwrap(), 0.0);
    }
}
