//! The streams of hidden states before the first layer and after the last one, following `Gemma3nTextModel` in Hugging Face
//! transformers.

use cake_checkpoint::LinearSpec;

use crate::batch::RowKinds;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// The least mean square that a stream is divided by the root of.
const LEAST: f64 = 1e-5;

/// What makes streams of the embedding, or what they end in: a product for each but the first.
pub(crate) struct StreamProducts<D: Device> {
    weights: Vec<D::Weight>,
    hidden_size: usize,
}

impl<D: Device> StreamProducts<D> {
    pub(crate) fn load(
        loader: &LayerLoader<'_, D>,
        products: impl Iterator<Item = LinearSpec>,
    ) -> Result<Self, Error> {
        let linear = |spec: LinearSpec| loader.linear(&spec, Precision::Bf16x2);
        let weights = products.map(linear).collect::<Result<Vec<_>, Error>>()?;
        Ok(StreamProducts { weights, hidden_size: loader.model.hidden_size })
    }

    /// All streams behind each other, `[rows, count × hidden_size]`, of the first, `[rows, hidden_size]`.
    pub(crate) fn begin(&self, device: &D, first: Vec<f32>) -> Result<Vec<f32>, Error> {
        if self.weights.is_empty() {
            return Ok(first);
        }
        let width = self.hidden_size;
        let kinds = RowKinds::generated(first.len() / width); // No row counts as one of a prompt.
        let embedded = device.rows(first.clone(), width)?;
        let count = self.weights.len() + 1;
        let mut all = vec![0.0; first.len() * count];
        put(&mut all, (width, count), 0, &first);
        for (index, weight) in self.weights.iter().enumerate() {
            let [product] = device.linear([weight], &embedded, &kinds)?;
            let mut product = device.values(product)?;
            as_long(&mut product, &first, width);
            put(&mut all, (width, count), index + 1, &product);
        }
        Ok(all)
    }

    /// What streams, `[rows, count × hidden_size]`, end in: `[rows, hidden_size]`.
    pub(crate) fn end(&self, device: &D, all: Vec<f32>) -> Result<Vec<f32>, Error> {
        if self.weights.is_empty() {
            return Ok(all);
        }
        let (width, count) = (self.hidden_size, self.weights.len() + 1);
        let part = |index: usize| -> Vec<f32> {
            let rows = all.chunks_exact(width * count);
            rows.flat_map(|row| &row[index * width..(index + 1) * width]).copied().collect()
        };
        let first = part(0);
        let kinds = RowKinds::generated(first.len() / width);
        let mut sums = first.clone();
        for (index, weight) in self.weights.iter().enumerate() {
            let stream = device.rows(part(index + 1), width)?;
            let [product] = device.linear([weight], &stream, &kinds)?;
            let mut product = device.values(product)?;
            as_long(&mut product, &first, width);
            sums.iter_mut().zip(product).for_each(|(sum, value)| *sum += value);
        }
        sums.iter_mut().for_each(|sum| *sum /= count as f32);
        Ok(sums)
    }
}

/// Writes one of `count` streams, `[rows, width]`, into its place in all of them.
fn put(all: &mut [f32], (width, count): (usize, usize), index: usize, stream: &[f32]) {
    for (row, stream) in all.chunks_exact_mut(width * count).zip(stream.chunks_exact(width)) {
        row[index * width..(index + 1) * width].copy_from_slice(stream);
    }
}

/// Makes rows of `width` as long as those of `model`.
fn as_long(rows: &mut [f32], model: &[f32], width: usize) {
    let mean_square = |row: &[f32]| {
        let squares = row.iter().map(|value| f64::from(*value) * f64::from(*value));
        squares.sum::<f64>() / width as f64
    };
    for (row, model) in rows.chunks_exact_mut(width).zip(model.chunks_exact(width)) {
        let factor = (mean_square(model) / mean_square(row).max(LEAST)).sqrt() as f32;
        row.iter_mut().for_each(|value| *value *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_as_long_as_others_unless_they_are_nearly_nothing() {
        let mut rows = [3.0, 4.0, 0.001, 0.0];
        as_long(&mut rows, &[0.6, 0.8, 30.0, 40.0], 2);
        assert_eq!(rows[..2], [0.6, 0.8]);
        // 0.001 · √(1250 / 1e-5), and not what divides by less.
        assert!((rows[2] - 11.180_34).abs() < 1e-4 && rows[3] == 0.0, "{rows:?}");
    }

    #[test]
    fn streams_lie_behind_each_other() {
        let mut all = [0.0; 8];
        put(&mut all, (2, 2), 0, &[1.0, 2.0, 5.0, 6.0]);
        put(&mut all, (2, 2), 1, &[3.0, 4.0, 7.0, 8.0]);
        assert_eq!(all, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }
}
