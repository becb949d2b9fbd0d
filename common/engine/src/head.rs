//! Hidden states to logits: the final norm and the output head.

use std::cell::RefCell;
use std::sync::Arc;

use cake_checkpoint::{LogitsSpec, MappedMatrix, MappedTensor, ModelSpec, Part, Watch};

use crate::batch::RowKinds;
use crate::device::cpu::exponential::capped;
use crate::device::cpu::isa::tier::Tier;
use crate::device::{Device, OnDevice, StoredLinear, on};
use crate::error::Error;
use crate::loader::{LayerLoader, Weights};
use crate::matrix::StoredMatrix;
use crate::options::{EngineOptions, Precision};
use crate::streams::StreamProducts;

/// The final norm and the output head of a model, with threads of their own.
pub struct Head {
    parts: Box<dyn Parts>,
    /// Numbers of a row after the last layer.
    row_width: usize,
    /// The files that it is read from.
    watch: Watch,
}

/// Norm and matrix on the device that computes them.
trait Parts: Send + Sync {
    /// Of `rows` after the last layer their norm, `[rows, hidden_size]`, or the logits, `[rows, vocab_size]`.
    fn forward(&self, rows: Vec<f32>, logits: bool) -> Result<Vec<f32>, Error>;
}

struct PartsOn<D: Device> {
    device: D,
    norm: D::Norm,
    head: D::Weight,
    /// What streams of hidden states end in, where there are several.
    streams: StreamProducts<D>,
    /// Numbers of a row after the last layer,
    row_width: usize,
    /// and of what is normed.
    hidden_size: usize,
    logits: LogitsSpec,
}

impl<D: Device> Parts for PartsOn<D> {
    fn forward(&self, rows: Vec<f32>, logits: bool) -> Result<Vec<f32>, Error> {
        let Self { device, norm, head, streams, row_width, hidden_size, .. } = self;
        let LogitsSpec { multiplier, softcap } = &self.logits;
        let kinds = RowKinds::generated(rows.len() / (*row_width).max(1)); // No row counts as one of a prompt.
        // One norm and few products: what they free does not pile up.
        device.compute(u64::MAX, || {
            let hidden = streams.end(device, rows)?;
            let normed = device.norm(norm, &device.rows(hidden, *hidden_size)?)?;
            if !logits {
                return device.values(normed);
            }
            let [logits] = device.linear([head], &normed, &kinds)?;
            let mut logits = device.values(logits)?;
            if *multiplier != 1.0 {
                logits.iter_mut().for_each(|logit| *logit *= multiplier);
            }
            if let Some(softcap) = softcap {
                capped(Tier::detect(), *softcap, &mut logits);
            }
            Ok(logits)
        })
    }
}

/// What the head is loaded from.
struct Load<'a> {
    model: &'a ModelSpec,
    weights: &'a Weights<'a>,
    head: StoredLinear,
    options: &'a EngineOptions,
}

impl OnDevice for Load<'_> {
    type Output = Box<dyn Parts>;

    fn run<D: Device + 'static>(self, device: D) -> Result<Box<dyn Parts>, Error> {
        let Self { model, weights, head, options } = self;
        let loader = LayerLoader { device: &device, weights, model, layer: None, options };
        let norm = loader.norm(&model.final_norm)?;
        let head = device.weight(head)?;
        let (row_width, hidden_size) = (model.hidden_width(), model.hidden_size);
        let end = model.streams.iter().flat_map(|streams| streams.end(hidden_size));
        let streams = StreamProducts::load(&loader, end)?;
        let logits = model.logits;
        Ok(Box::new(PartsOn { device, norm, head, streams, row_width, hidden_size, logits }))
    }
}

impl Head {
    /// `norm` is `[hidden_size]`, `head` is `[vocab_size, hidden_size]` (the embedding when tied); `others` finds what else
    /// is outside the layers, by full checkpoint name.
    ///
    /// # Errors
    /// If a tensor is missing or is not that, threads cannot be started, or [`cpu_tier`](crate::cpu_tier) fails.
    pub fn new(
        config: &ModelSpec,
        norm: MappedTensor,
        head: MappedMatrix,
        others: &dyn Fn(&str) -> Option<MappedTensor>,
        options: &EngineOptions,
    ) -> Result<Head, Error> {
        let (hidden_size, vocab_size) = (config.hidden_size, config.vocab_size);
        let mut watch = Watch::default();
        head.parts.iter().for_each(|tensor| watch.add(tensor));
        let head = StoredMatrix::new("output head", head, hidden_size)?;
        if head.rows() != vocab_size {
            let (name, expected, found) = ("output head".to_owned(), vocab_size, head.rows());
            return Err(Error::WrongRows { name, expected, found });
        }
        let head = StoredLinear {
            matrix: Arc::new(head),
            rows: 0..vocab_size,
            bias: None,
            numerics: options.numerics,
            precision: Precision::Bf16x2,
            tallied: None,
        };
        let of_norm = format!("{}{}", config.final_norm.path, Part::Weight.ending());
        let watch = RefCell::new(watch);
        let weights: &Weights<'_> = &|name| {
            let found = if name == of_norm { Some(norm.clone()) } else { others(name) };
            found.inspect(|tensor| watch.borrow_mut().add(tensor))
        };
        let parts = on(options, Load { model: config, weights, head, options })?;
        let watch = watch.into_inner();
        watch.check()?; // The norm was read just now.
        Ok(Head { parts, row_width: config.hidden_width(), watch })
    }

    /// Logits `[rows, vocab_size]` of `hidden`: rows as they are after the last layer ([`ModelSpec::row_width`]).
    ///
    /// # Errors
    /// [`Error::WrongHidden`] if `hidden` is not `rows` rows, [`Error::Damaged`] if a file of weights was.
    pub fn forward(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, Error> {
        self.run(hidden, rows, true)
    }

    /// The final hidden states `[rows, hidden_size]`: the same after the norm.
    ///
    /// # Errors
    /// [`Error::WrongHidden`] if `hidden` is not `rows` rows, [`Error::Damaged`] if a file of weights was.
    pub fn normed(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, Error> {
        self.run(hidden, rows, false)
    }

    fn run(&self, hidden: Vec<f32>, rows: usize, logits: bool) -> Result<Vec<f32>, Error> {
        let width = self.row_width;
        if rows.checked_mul(width) != Some(hidden.len()) {
            return Err(Error::WrongHidden { rows, width, found: hidden.len() });
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        let values = self.parts.forward(hidden, logits);
        self.watch.check()?;
        values
    }
}
