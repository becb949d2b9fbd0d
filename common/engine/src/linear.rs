//! Linear layers: the one door to the weights of a model.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::batch::RowKinds;
use crate::device::cpu::buffer::{Room, Unset};
use crate::device::cpu::gemm::inputs::Inputs;
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{self, Tasks};
use crate::error::Error;
use crate::matrix::{Form, StoredMatrix};
use crate::options::{Numerics, Ops};
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
        /// What is multiplied after this one and those with it, if that is known.
        next: Vec<(Arc<StoredMatrix>, Range<usize>)>,
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
                Weight::Stored { matrix, rows, bias, arithmetic, precision, next: Vec::new() }
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

    /// Says which layers' products come at once after those that begin with this one, for threads that wait
    /// to ask memory for.
    pub(crate) fn precede(&mut self, later: &[&Linear]) {
        if let Weight::Stored { next, .. } = &mut self.weight {
            let stored = |later: &&Linear| match &later.weight {
                Weight::Stored { matrix, rows, .. } => Some((matrix.clone(), rows.clone())),
                Weight::Candle { .. } => None,
            };
            *next = later.iter().filter_map(stored).collect();
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
        let rows = x.dim(0)?;
        let mut results = Vec::with_capacity(N);
        for (layer, product) in layers.iter().zip(Linear::products(layers, x, kinds)?) {
            results.push(match product {
                Product::Values(values) => tensors::matrix(values, rows, layer.outputs)?,
                Product::Tensor(tensor) => tensor,
            });
        }
        results.try_into().map_err(|_| candle_core::Error::Msg("a result per layer".into()))
    }

    /// [`Linear::forward`], its result as it lies in memory.
    pub(crate) fn forward_values(
        &self,
        x: &Tensor,
        kinds: &RowKinds,
    ) -> candle_core::Result<Vec<f32>> {
        match Linear::products([self], x, kinds)?.pop() {
            Some(Product::Values(values)) => Ok(values),
            Some(Product::Tensor(tensor)) => tensor.flatten_all()?.to_vec1(),
            None => candle_core::bail!("a result per layer"),
        }
    }

    /// A product for each layer.
    fn products<const N: usize>(
        layers: [&Linear; N],
        x: &Tensor,
        kinds: &RowKinds,
    ) -> candle_core::Result<Vec<Product>> {
        let (count, inputs) = x.dims2()?;
        if let Some(layer) = layers.iter().find(|layer| layer.inputs != inputs) {
            candle_core::bail!("{inputs} inputs for a layer of {}", layer.inputs);
        }
        if kinds.rows() != count {
            candle_core::bail!("{count} rows of activations, and kinds of {}", kinds.rows());
        }
        let candle = |layer: &&Linear| matches!(layer.weight, Weight::Candle { .. });
        if layers.iter().any(candle) {
            return layers.iter().map(|layer| layer.candle(x).map(Product::Tensor)).collect();
        }
        let mut results = layers.map(|layer| Room::<f32>::new(count * layer.outputs));
        let upcoming = layers.first().map_or_else(Vec::new, |first| first.upcoming());
        tensors::with_values(x, |x| {
            for (run, rounded) in kinds.runs() {
                let x = &x[run.start * inputs..run.end * inputs];
                let forms = layers.map(|layer| layer.form(rounded));
                let mut first = 0;
                // What is made of `x` serves those that take it in one form, and takes room: one after the other.
                for same in forms.chunk_by(|a, b| a == b) {
                    let ready = Inputs::new(x);
                    let these = first..first + same.len();
                    first = these.end;
                    let results = results[these.clone()].iter_mut();
                    let tasks: Vec<Tasks<'_>> = layers[these]
                        .iter()
                        .zip(results)
                        .filter_map(|(layer, places)| {
                            let y = run.start * layer.outputs..run.end * layer.outputs;
                            let y = &mut places.places()[y];
                            layer.tasks(&ready, rounded, y)
                        })
                        .collect();
                    pool::expect(&upcoming);
                    pool::run_all(&tasks);
                }
            }
        })?;
        // SAFETY: the runs are all rows, and of each row the tasks of a layer, all of which are done, write every
        // output.
        Ok(results.map(|room| Product::Values(unsafe { room.written() })).into())
    }

    /// What the products after this one and those with it read.
    fn upcoming(&self) -> Vec<&[u8]> {
        match &self.weight {
            Weight::Stored { next, .. } => {
                next.iter().map(|(matrix, rows)| matrix.stored(rows.clone())).collect()
            }
            Weight::Candle { .. } => Vec::new(),
        }
    }

    /// How a stored weight takes its inputs, `rounded` if they are of a prompt.
    fn form(&self, rounded: bool) -> Option<Form> {
        match &self.weight {
            Weight::Stored { matrix, arithmetic, precision, .. } => {
                Some(matrix.form(arithmetic.0, rounded.then_some(*precision)))
            }
            Weight::Candle { .. } => None,
        }
    }

    /// The product with a stored weight.
    fn tasks<'a>(
        &'a self,
        x: &'a Inputs<'a>,
        rounded: bool,
        y: &'a mut Unset,
    ) -> Option<Tasks<'a>> {
        match &self.weight {
            Weight::Stored { matrix, rows, bias, arithmetic, precision, .. } => {
                let x = (x, rounded.then_some(*precision));
                Some(matrix.multiply(*arithmetic, rows.clone(), bias.as_deref(), x, y))
            }
            Weight::Candle { .. } => None,
        }
    }

    /// The product with a widened weight.
    fn candle(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match &self.weight {
            Weight::Candle { transposed, bias: None } => x.matmul(transposed),
            Weight::Candle { transposed, bias: Some(bias) } => {
                x.matmul(transposed)?.broadcast_add(bias)
            }
            Weight::Stored { .. } => candle_core::bail!("a stored weight among widened ones"),
        }
    }
}

/// What came of a layer.
enum Product {
    /// `[rows, outputs]`, row-major.
    Values(Vec<f32>),
    Tensor(Tensor),
}
