//! What computes the blocks of a stage. Model mathematics (`block/`) is written once over [`Device`]; a device is a
//! folder or a file beside this one, and a line in `choice`.

mod attending;
#[cfg(feature = "candle")]
mod candle;
mod candle_scratch;
pub(crate) mod choice;
pub(crate) mod cpu;
pub(crate) mod kv_codes;
pub(crate) mod recurrent;

pub(crate) use attending::Attending;
pub(crate) use choice::{OnDevice, on, scratch_of};
pub(crate) use recurrent::{Convolution, Recurrence, Recurring};

use std::ops::Range;
use std::sync::Arc;

use cake_checkpoint::{Activation, ClampedGate, NormKind};

use crate::batch::RowKinds;
use crate::error::Error;
use crate::matrix::StoredMatrix;
use crate::options::{EngineOptions, Numerics, Precision};
use crate::rope::Rotation;
use crate::step::Step;
use crate::tally::Tallied;

/// A linear layer as it is stored: `y = x · weightᵀ + bias`.
pub(crate) struct StoredLinear {
    /// The matrix, `[any, inputs]`; it has all of `rows`.
    pub(crate) matrix: Arc<StoredMatrix>,
    /// The matrix's rows that are this layer's outputs.
    pub(crate) rows: Range<usize>,
    /// `[outputs]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// How exactly products are computed.
    pub(crate) numerics: Numerics,
    /// What activations of a prompt may be rounded to, where numerics let them be.
    pub(crate) precision: Precision,
    /// Who adds up what it is multiplied with, where that is the processor's work.
    pub(crate) tallied: Option<Tallied>,
}

/// A norm as it is stored.
pub(crate) struct StoredNorm {
    /// What values are multiplied with, `[width]`.
    pub(crate) weight: Vec<f32>,
    /// What is added then, `[width]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// What it does.
    pub(crate) kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub(crate) eps: f32,
}

impl StoredNorm {
    /// One by the root of the mean square, without a bias.
    pub(crate) fn rms(weight: Vec<f32>, eps: f32) -> Self {
        StoredNorm { weight, bias: None, kind: NormKind::Rms, eps }
    }
}

/// The numbers of an activation ([`Activation::Xielu`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xielu {
    /// What squares of positive numbers are multiplied with.
    pub(crate) positive: f32,
    /// What is multiplied where numbers are negative.
    pub(crate) negative: f32,
    /// What all are multiplied with.
    pub(crate) beta: f32,
    /// The largest exponent.
    pub(crate) eps: f32,
}

/// What a device takes of memory for parts of a step, beside their operands and results: upper bounds, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct DeviceScratch {
    /// For products with so many `inputs`, of so many `rows`: what is made of the activations.
    pub(crate) product: fn(inputs: u64, rows: u64) -> u64,
    /// For attention of so many rows that see up to so many positions.
    pub(crate) attention: fn(&Attending, rows: usize, context: usize, threads: usize) -> u64,
    /// On each thread, for products with up to so many inputs.
    pub(crate) thread: fn(inputs: u64) -> u64,
}

/// Something that computes blocks: activations and weights that lie with it, and what is done with them.
///
/// Activations are `[rows, width]` in f32; a row of a result depends on that row of the operands and its past alone.
/// Shapes were checked by whoever calls: what does not fit is a fault of this program, and an error.
pub(crate) trait Device: Send + Sync {
    /// Activations, `[rows, width]`.
    type Rows;
    /// The weight of a linear layer.
    type Weight: Send + Sync;
    /// A norm.
    type Norm: Send + Sync;
    /// Keys and values of one layer, in blocks that the master numbers.
    type Kept: Send + Sync;
    /// Recurrent state of one operation, in slots that the master numbers.
    type State: Send + Sync;

    /// What such a device takes of memory for parts of a step.
    fn scratch() -> DeviceScratch;

    /// Calls `work` where this device computes, with its threads at hand. Memory that is freed meanwhile may be kept for
    /// what comes next, as long as no more than `limit` bytes are taken in all.
    fn compute<R>(&self, limit: u64, work: impl FnOnce() -> R) -> R;

    /// Calls `work`, which asks for memory of other sizes than anything before or after it: what it frees need not be kept.
    fn apart<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Brings activations to the device. `values` is row-major, a multiple of `width` long.
    fn rows(&self, values: Vec<f32>, width: usize) -> Result<Self::Rows, Error>;

    /// Brings activations back, row-major.
    fn values(&self, rows: Self::Rows) -> Result<Vec<f32>, Error>;

    /// Makes the weight of a linear layer ready.
    fn weight(&self, linear: StoredLinear) -> Result<Self::Weight, Error>;

    /// Tells the device which products follow at once on those that begin with `weight`: a hint, so that it can prefetch
    /// their bytes.
    fn precede(&self, weight: &mut Self::Weight, later: &[&Self::Weight]) {
        let _ = (weight, later);
    }

    /// `x · weightᵀ + bias` for several weights with the same `x`, whose rows are of these `kinds`.
    fn linear<const N: usize>(
        &self,
        weights: [&Self::Weight; N],
        x: &Self::Rows,
        kinds: &RowKinds,
    ) -> Result<[Self::Rows; N], Error>;

    /// Makes a norm ready.
    fn norm_weight(&self, norm: StoredNorm) -> Result<Self::Norm, Error>;

    /// `weight · x / sqrt(mean(x²) + eps) + bias`, or the same of `x - mean(x)`; as many values as the weight has are normalised by
    /// themselves.
    fn norm(&self, norm: &Self::Norm, x: &Self::Rows) -> Result<Self::Rows, Error>;

    /// Turns each head of `x`, `[rows, heads × head_dim]`, by the row's position.
    fn rotate(
        &self,
        x: Self::Rows,
        rotation: &Rotation,
        heads: usize,
        head_dim: usize,
    ) -> Result<Self::Rows, Error>;

    /// Reserves memory for the keys and values of one layer.
    ///
    /// # Errors
    /// [`Error::KvTooLarge`] or [`Error::KvMemory`] if there cannot be so much.
    fn kept(&self, spec: &Attending, options: &EngineOptions) -> Result<Self::Kept, Error>;

    /// Writes the keys and values of the step's rows, each `[rows, kv_heads × head_dim]`, over what was there; no values
    /// where keys are the values, too.
    fn keep(
        &self,
        kept: &mut Self::Kept,
        step: &Step<'_>,
        keys: &Self::Rows,
        values: Option<&Self::Rows>,
    ) -> Result<(), Error>;

    /// Attention of `queries`, `[rows, heads × head_dim]`, over what is kept of each row's past: the weighted values, of
    /// the same shape. `sinks`, `[heads]`, are the scores beside those of positions, where there are such.
    fn attend(
        &self,
        kept: &Self::Kept,
        spec: &Attending,
        step: &Step<'_>,
        queries: &Self::Rows,
        sinks: Option<&[f32]>,
    ) -> Result<Self::Rows, Error>;

    /// Reserves memory for what a convolution keeps.
    ///
    /// # Errors
    /// [`Error::StateMemory`] if there cannot be so much.
    fn convolution_state(
        &self,
        convolution: &Convolution,
        options: &EngineOptions,
    ) -> Result<Self::State, Error>;

    /// The convolution of the step's rows, `[rows, channels]`, each sequence's with those before it; what its next rows will
    /// meet is kept.
    fn convolve(
        &self,
        convolution: &Convolution,
        state: &mut Self::State,
        step: &Step<'_>,
        x: &Self::Rows,
    ) -> Result<Self::Rows, Error>;

    /// Reserves memory for the matrices of a recurrence.
    ///
    /// # Errors
    /// [`Error::StateMemory`] if there cannot be so much.
    fn recurrence_state(
        &self,
        recurrence: &Recurrence,
        options: &EngineOptions,
    ) -> Result<Self::State, Error>;

    /// What comes out of the step's rows, `[rows, heads × value_dim]`, as each changes its sequence's matrices.
    fn recur(
        &self,
        recurrence: &Recurrence,
        state: &mut Self::State,
        step: &Step<'_>,
        of: Recurring<'_, Self::Rows>,
    ) -> Result<Self::Rows, Error>;

    /// `ln(1 + exp(x + bias))` of each row, `[rows, as many as the bias has]`.
    fn softplus(&self, x: Self::Rows, bias: &[f32]) -> Result<Self::Rows, Error>;

    /// Each number of `x` so many times: `[rows, width × times]`.
    fn spread(&self, x: Self::Rows, times: usize) -> Result<Self::Rows, Error>;

    /// xIELU of each number.
    fn xielu(&self, numbers: &Xielu, x: Self::Rows) -> Result<Self::Rows, Error>;

    /// `a · b`, elementwise.
    fn multiply(&self, a: Self::Rows, b: &Self::Rows) -> Result<Self::Rows, Error>;

    /// `activation(gate) · up`, elementwise.
    fn gate(
        &self,
        activation: Activation,
        gate: Self::Rows,
        up: Self::Rows,
    ) -> Result<Self::Rows, Error>;

    /// What a clamped gate makes of gate and up, elementwise.
    fn clamped(
        &self,
        of: ClampedGate,
        gate: Self::Rows,
        up: Self::Rows,
    ) -> Result<Self::Rows, Error>;

    /// `activation(x)`, elementwise.
    fn activate(&self, activation: Activation, x: Self::Rows) -> Result<Self::Rows, Error>;

    /// `x · factor`.
    fn scale(&self, x: Self::Rows, factor: f32) -> Result<Self::Rows, Error>;

    /// Each row of `x`, `[rows, width]`, times its factor.
    fn scale_rows(&self, x: Self::Rows, factors: &[f32]) -> Result<Self::Rows, Error>;

    /// Each number of each row of `x`, `[rows, width]`, times its factor.
    fn scale_columns(&self, x: Self::Rows, factors: &[f32]) -> Result<Self::Rows, Error>;

    /// `max(x − bound, 0)` of each number, where the bound is so many standard deviations above the mean of its row.
    fn above(&self, x: Self::Rows, deviations: f32) -> Result<Self::Rows, Error>;

    /// `a + b`, elementwise.
    fn add(&self, a: Self::Rows, b: Self::Rows) -> Result<Self::Rows, Error>;

    /// Of each `period` numbers of a row those in `columns`: `[rows, width / period × columns]`.
    fn columns(
        &self,
        x: &Self::Rows,
        period: usize,
        columns: Range<usize>,
    ) -> Result<Self::Rows, Error>;

    /// Rows with so many numbers of each part in turn, until all of them are there.
    fn join(&self, parts: &[(&Self::Rows, usize)]) -> Result<Self::Rows, Error>;

    /// The softmax of each row, brought back: `[rows, width]`.
    fn softmax(&self, x: Self::Rows) -> Result<Vec<f32>, Error>;

    /// The rows of `x` with these numbers, behind each other.
    fn gather(&self, x: &Self::Rows, rows: &[usize]) -> Result<Self::Rows, Error>;

    /// Zeros of the shape of `x`.
    fn zeros_like(&self, x: &Self::Rows) -> Result<Self::Rows, Error>;

    /// Adds each row of `x`, times its weight, to the row of `sums` with the number at its place in `rows`, each of which
    /// is there once.
    fn scatter_add(
        &self,
        sums: &mut Self::Rows,
        rows: &[usize],
        weights: &[f32],
        x: &Self::Rows,
    ) -> Result<(), Error>;
}
