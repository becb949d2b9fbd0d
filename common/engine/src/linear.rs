//! Linear layers: the one door to the weights of a model.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::batch::RowKinds;
use crate::error::Error;
use crate::kernel::{Inputs, Precision, Tier};
use crate::matrix::StoredMatrix;
use crate::options::{Numerics, Ops};
use crate::pool;
use crate::tensors;

/// `y = x · weightᵀ + bias` with a weight that stays as it is stored.
///
/// The weight may be some rows of a larger matrix, so fused projections are several of these.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    weight: Weight,
}

enum Weight {
    /// Rows of a stored matrix.
    Stored {
        matrix: Arc<StoredMatrix>,
        rows: Range<usize>,
        bias: Option<Vec<f32>>,
        arithmetic: (Tier, Numerics),
        /// Of a prompt's rows.
        precision: Precision,
        /// What is multiplied after this one, if that is known.
        next: Option<(Arc<StoredMatrix>, Range<usize>)>,
    },
    /// `[inputs, outputs]` and `[outputs]`, widened: the reference path.
    Candle { transposed: Tensor, bias: Option<Tensor> },
}

impl Linear {
    /// The layer whose weight is `rows` of `matrix`, which has them. A prompt's rows may be
    /// rounded to `precision`.
    ///
    /// # Errors
    /// If candle refuses the widened weight.
    pub(crate) fn new(
        matrix: Arc<StoredMatrix>,
        rows: Range<usize>,
        bias: Option<Vec<f32>>,
        (ops, numerics, precision): (Ops, Numerics, Precision),
    ) -> Result<Linear, Error> {
        let (inputs, outputs) = (matrix.columns(), rows.len());
        let weight = match ops {
            Ops::Cake => {
                let arithmetic = (Tier::detect(), numerics);
                Weight::Stored { matrix, rows, bias, arithmetic, precision, next: None }
            }
            Ops::Candle => {
                let widened = matrix.widen(Tier::detect(), rows);
                let transposed = tensors::matrix(widened, outputs, inputs)?.t()?;
                let bias = bias.map(|bias| Tensor::from_vec(bias, outputs, &Device::Cpu));
                Weight::Candle { transposed, bias: bias.transpose()? }
            }
        };
        Ok(Linear { inputs, outputs, weight })
    }

    /// Says which layer's product comes after this one's, for threads that wait to ask memory for.
    pub(crate) fn precede(&mut self, later: &Linear) {
        if let Weight::Stored { next, .. } = &mut self.weight
            && let Weight::Stored { matrix, rows, .. } = &later.weight
        {
            *next = Some((matrix.clone(), rows.clone()));
        }
    }

    /// `x` is `[rows, inputs]`, its rows of these `kinds`, the result `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        let [y] = Linear::forward_each([self], x, kinds)?;
        Ok(y)
    }

    /// [`Linear::forward`] of several layers with the same `x`, which is made ready for the
    /// kernels once.
    pub(crate) fn forward_each<const N: usize>(
        layers: [&Linear; N],
        x: &Tensor,
        kinds: &RowKinds,
    ) -> candle_core::Result<[Tensor; N]> {
        let (count, inputs) = x.dims2()?;
        if let Some(layer) = layers.iter().find(|layer| layer.inputs != inputs) {
            candle_core::bail!("{inputs} inputs for a layer of {}", layer.inputs);
        }
        let mut stored: [Vec<f32>; N] = std::array::from_fn(|_| Vec::new());
        tensors::with_values(x, |x| {
            for (run, rounded) in kinds.runs() {
                let x = &x[run.start * inputs..run.end * inputs];
                let (mut ready, mut last) = (Inputs::new(x), None);
                for (layer, y) in layers.iter().zip(&mut stored) {
                    let Weight::Stored { matrix, rows, bias, arithmetic, precision, next } =
                        &layer.weight
                    else {
                        continue;
                    };
                    let precision = rounded.then_some(*precision);
                    let form = matrix.form(arithmetic.0, precision);
                    if last.replace(form).is_some_and(|last| last != form) {
                        ready = Inputs::new(x); // What was made for the others is of no use.
                    }
                    let bias = bias.as_deref();
                    let next = next.as_ref().map(|(matrix, rows)| matrix.stored(rows.clone()));
                    pool::expect(next.unwrap_or_default());
                    let part = matrix.multiply(*arithmetic, rows.clone(), bias, &ready, precision);
                    match y.is_empty() {
                        true => *y = part, // Moved: nearly every step has one run.
                        false => {
                            y.reserve_exact(part.len());
                            y.extend(part);
                        }
                    }
                }
            }
        })?;
        let mut results = Vec::with_capacity(N);
        for (layer, stored) in layers.iter().zip(stored) {
            results.push(match &layer.weight {
                Weight::Stored { .. } => tensors::matrix(stored, count, layer.outputs)?,
                Weight::Candle { transposed, bias: None } => x.matmul(transposed)?,
                Weight::Candle { transposed, bias: Some(bias) } => {
                    x.matmul(transposed)?.broadcast_add(bias)?
                }
            });
        }
        results.try_into().map_err(|_| candle_core::Error::Msg("a result per layer".into()))
    }
}
