//! What rows carry to the first layer beside the embeddings of their tokens.

use cake_checkpoint::{GivenSpec, ModelSpec};

use crate::batch::RowKinds;
use crate::device::cpu::operand::Table;
use crate::device::{Device, OnDevice};
use crate::error::Error;
use crate::loader::{LayerLoader, Weights};
use crate::options::{EngineOptions, Precision};
use crate::streams::StreamProducts;

/// Makes whole rows of embeddings.
pub(crate) trait FirstRows: Send + Sync {
    /// The rows of `ids`, `[ids, row_width]`, whose embeddings are `hidden`, `[ids, hidden_size]`.
    fn rows(&self, ids: &[u32], hidden: Vec<f32>) -> Result<Vec<f32>, Error>;
}

/// What rows are made with, on the device that computes it.
struct On<D: Device> {
    device: D,
    hidden_size: usize,
    streams: StreamProducts<D>,
    given: Option<Given<D>>,
}

/// What makes the numbers that layers are given.
struct Given<D: Device> {
    spec: GivenSpec,
    /// `[rows, layers × width]`, looked up where it is stored.
    table: Table,
    projection: D::Weight,
    norm: D::Norm,
}

/// What that is loaded from.
pub(crate) struct Load<'a> {
    pub(crate) model: &'a ModelSpec,
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) options: &'a EngineOptions,
}

impl OnDevice for Load<'_> {
    type Output = Box<dyn FirstRows>;

    fn run<D: Device + 'static>(self, device: D) -> Result<Self::Output, Error> {
        let Self { model, weights, options } = self;
        let loader = LayerLoader { device: &device, weights, model, layer: None, options };
        let given = model.given.as_ref().map(|spec| Given::load(&loader, spec)).transpose()?;
        let hidden_size = model.hidden_size;
        let begin = model.streams.iter().flat_map(|streams| streams.begin(hidden_size));
        let streams = StreamProducts::load(&loader, begin)?;
        Ok(Box::new(On { device, hidden_size, streams, given }))
    }
}

impl<D: Device> FirstRows for On<D> {
    fn rows(&self, ids: &[u32], hidden: Vec<f32>) -> Result<Vec<f32>, Error> {
        let Self { device, hidden_size, streams, given } = self;
        // A few products and a norm: what they free does not pile up.
        device.compute(u64::MAX, || {
            let Some(given) = given else { return streams.begin(device, hidden) };
            let embedded = device.rows(hidden.clone(), *hidden_size)?;
            let given = given.numbers(device, ids, &embedded)?;
            drop(embedded);
            let hidden = streams.begin(device, hidden)?;
            let each = |all: &[f32]| (all.len() / ids.len().max(1)).max(1);
            let mut rows = Vec::with_capacity(hidden.len() + given.len());
            let parts = given.chunks_exact(each(&given));
            for (hidden, given) in hidden.chunks_exact(each(&hidden)).zip(parts) {
                rows.extend_from_slice(hidden);
                rows.extend_from_slice(given);
            }
            Ok(rows)
        })
    }
}

impl<D: Device> Given<D> {
    fn load(loader: &LayerLoader<'_, D>, spec: &GivenSpec) -> Result<Self, Error> {
        let (layers, hidden_size) = (loader.model.layers.len(), loader.model.hidden_size);
        let projection = spec.projection(layers, hidden_size);
        Ok(Given {
            table: Table::new(loader.matrix(&spec.table(layers))?),
            projection: loader.linear(&projection, Precision::Bf16x2)?,
            norm: loader.norm(&spec.norm)?,
            spec: spec.clone(),
        })
    }

    /// What all layers are given of each token, `[ids, layers × width]`; `embedded` is `[ids, hidden_size]`.
    fn numbers(&self, device: &D, ids: &[u32], embedded: &D::Rows) -> Result<Vec<f32>, Error> {
        let kinds = RowKinds::generated(ids.len()); // No row counts as one of a prompt.
        let GivenSpec { row_multiplier, product_multiplier, multiplier, .. } = self.spec;
        let [product] = device.linear([&self.projection], embedded, &kinds)?;
        let normed = device.norm(&self.norm, &device.scale(product, product_multiplier)?)?;
        let mut numbers = device.values(normed)?;
        let columns = self.table.columns();
        for (&token, numbers) in ids.iter().zip(numbers.chunks_exact_mut(columns.max(1))) {
            let row = Some(token as usize).filter(|row| *row < self.table.rows()).unwrap_or(0);
            let row = self.table.row(row);
            for (number, of_table) in numbers.iter_mut().zip(row) {
                *number = (*number + of_table * row_multiplier) * multiplier;
            }
        }
        Ok(numbers)
    }
}
