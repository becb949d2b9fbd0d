//! The processor as a device: our kernels, on weights as they are stored, on threads of their own.

use std::ops::Range;

use cake_checkpoint::{Activation, ClampedGate, NormKind};

use super::activation::{activated, clamped, gated, xielu};
use super::attention::{Attend, attend, attend_bytes};
use super::elementwise::{above, add, layer_norm, rms_norm, rotate};
use super::exponential::softmax;
use super::gemm::table;
use super::isa::choice::chosen;
use super::isa::tier::Tier;
use super::kv::KvPool;
use super::linear::Linear;
use super::pool::Pool;
use super::recurrent::{convolve, recur, softplus};
use crate::batch::RowKinds;
use crate::device::recurrent::States;
use crate::device::{
    Attending, Convolution, Device, DeviceScratch, Recurrence, Recurring, StoredLinear, StoredNorm,
    Xielu,
};
use crate::error::Error;
use crate::options::EngineOptions;
use crate::reuse;
use crate::rope::Rotation;
use crate::step::Step;

/// The processor.
pub(crate) struct Cpu {
    tier: Tier,
    pool: Pool,
}

/// Activations `[rows, width]` in memory, f32.
pub(crate) struct Rows {
    /// Row-major, whole rows.
    values: Vec<f32>,
    /// Values of one row.
    width: usize,
}

impl Cpu {
    /// The processor with as many threads as the options say.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses one, and the errors of [`cpu_tier`](crate::cpu_tier).
    pub(crate) fn new(options: &EngineOptions) -> Result<Cpu, Error> {
        chosen()?;
        Ok(Cpu { tier: Tier::detect(), pool: Pool::new(options.threads)? })
    }
}

impl Rows {
    /// Others of the same width.
    fn with(&self, values: Vec<f32>) -> Rows {
        Rows { values, width: self.width }
    }
}

impl Device for Cpu {
    type Rows = Rows;
    type Weight = Linear;
    type Norm = StoredNorm;
    type Kept = KvPool;
    type State = States;

    fn scratch() -> DeviceScratch {
        DeviceScratch {
            product: |inputs, rows| table::scratch(inputs, rows).activations,
            attention: attend_bytes,
            thread: |inputs| table::scratch(inputs, 1).thread,
        }
    }

    fn compute<R>(&self, limit: u64, work: impl FnOnce() -> R) -> R {
        let _step = reuse::Step::begin(limit);
        self.pool.install(work)
    }

    fn apart<R>(&self, work: impl FnOnce() -> R) -> R {
        let _step = reuse::Step::begin(0); // The limit is that of the step that this is part of.
        work()
    }

    fn rows(&self, values: Vec<f32>, width: usize) -> Result<Rows, Error> {
        Ok(Rows { values, width })
    }

    fn values(&self, rows: Rows) -> Result<Vec<f32>, Error> {
        Ok(rows.values)
    }

    fn weight(&self, linear: StoredLinear) -> Result<Linear, Error> {
        Ok(Linear::new(self.tier, linear))
    }

    fn precede(&self, weight: &mut Linear, later: &[&Linear]) {
        weight.precede(later);
    }

    fn linear<const N: usize>(
        &self,
        weights: [&Linear; N],
        x: &Rows,
        kinds: &RowKinds,
    ) -> Result<[Rows; N], Error> {
        let widths = weights.map(Linear::outputs);
        let mut widths = widths.into_iter();
        let results = Linear::forward_each(weights, &x.values, kinds)?;
        Ok(results.map(|values| Rows { values, width: widths.next().unwrap_or(0) }))
    }

    fn norm_weight(&self, norm: StoredNorm) -> Result<StoredNorm, Error> {
        Ok(norm)
    }

    fn norm(&self, norm: &StoredNorm, x: &Rows) -> Result<Rows, Error> {
        let (found, width) = (x.values.len(), norm.weight.len());
        if found % width != 0 {
            return Err(Error::NotWholeRows { width, found });
        }
        let mut normed = match norm.kind {
            NormKind::Rms => rms_norm(self.tier, &x.values, &norm.weight, norm.eps),
            NormKind::Layer => layer_norm(self.tier, &x.values, &norm.weight, norm.eps),
        };
        if let Some(bias) = &norm.bias {
            for row in normed.chunks_exact_mut(width) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
        Ok(x.with(normed))
    }

    fn rotate(
        &self,
        x: Rows,
        rotation: &Rotation,
        heads: usize,
        head_dim: usize,
    ) -> Result<Rows, Error> {
        Ok(x.with(rotate(&x.values, rotation, (heads, head_dim))))
    }

    fn kept(&self, spec: &Attending, options: &EngineOptions) -> Result<KvPool, Error> {
        KvPool::new(spec, options)
    }

    fn keep(
        &self,
        kept: &mut KvPool,
        step: &Step<'_>,
        keys: &Rows,
        values: Option<&Rows>,
    ) -> Result<(), Error> {
        kept.append(&step.rows, &keys.values, values.map(|values| &values.values[..]));
        Ok(())
    }

    fn attend(
        &self,
        kept: &KvPool,
        spec: &Attending,
        step: &Step<'_>,
        queries: &Rows,
        sinks: Option<&[f32]>,
    ) -> Result<Rows, Error> {
        let call = Attend { kv: kept.view(), rows: &step.rows, spec, sinks };
        Ok(queries.with(attend(self.tier, &call, &queries.values)))
    }

    fn convolution_state(
        &self,
        convolution: &Convolution,
        options: &EngineOptions,
    ) -> Result<States, Error> {
        convolution.states(options)
    }

    fn convolve(
        &self,
        convolution: &Convolution,
        state: &mut States,
        step: &Step<'_>,
        x: &Rows,
    ) -> Result<Rows, Error> {
        Ok(x.with(convolve(self.tier, convolution, state, step.items, &x.values)))
    }

    fn recurrence_state(
        &self,
        recurrence: &Recurrence,
        options: &EngineOptions,
    ) -> Result<States, Error> {
        recurrence.states(options)
    }

    fn recur(
        &self,
        recurrence: &Recurrence,
        state: &mut States,
        step: &Step<'_>,
        of: Recurring<'_, Rows>,
    ) -> Result<Rows, Error> {
        let all = Recurring {
            keys: &of.keys.values[..],
            queries: &of.queries.values,
            values: &of.values.values,
            steps: &of.steps.values,
            weights: &of.weights.values,
        };
        Ok(of.values.with(recur(self.tier, recurrence, state, step.items, all)))
    }

    fn softplus(&self, mut x: Rows, bias: &[f32]) -> Result<Rows, Error> {
        softplus(self.tier, &mut x.values, bias);
        Ok(x)
    }

    fn spread(&self, x: Rows, times: usize) -> Result<Rows, Error> {
        let values = x.values.iter().flat_map(|value| std::iter::repeat_n(*value, times));
        let mut spread = Vec::with_capacity(x.values.len() * times);
        spread.extend(values);
        Ok(Rows { values: spread, width: x.width * times })
    }

    fn xielu(&self, numbers: &Xielu, x: Rows) -> Result<Rows, Error> {
        Ok(x.with(xielu(self.tier, *numbers, &x.values)))
    }

    fn multiply(&self, mut a: Rows, b: &Rows) -> Result<Rows, Error> {
        a.values.iter_mut().zip(&b.values).for_each(|(a, b)| *a *= b);
        Ok(a)
    }

    fn gate(&self, activation: Activation, gate: Rows, up: Rows) -> Result<Rows, Error> {
        Ok(gate.with(gated(self.tier, activation, &gate.values, &up.values)))
    }

    fn clamped(&self, of: ClampedGate, gate: Rows, up: Rows) -> Result<Rows, Error> {
        Ok(gate.with(clamped(self.tier, of, &gate.values, &up.values)))
    }

    fn activate(&self, activation: Activation, x: Rows) -> Result<Rows, Error> {
        Ok(x.with(activated(self.tier, activation, &x.values)))
    }

    fn scale(&self, mut x: Rows, factor: f32) -> Result<Rows, Error> {
        x.values.iter_mut().for_each(|value| *value *= factor);
        Ok(x)
    }

    fn scale_rows(&self, mut x: Rows, factors: &[f32]) -> Result<Rows, Error> {
        let rows = x.values.chunks_exact_mut(x.width.max(1));
        for (row, factor) in rows.zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(x)
    }

    fn scale_columns(&self, mut x: Rows, factors: &[f32]) -> Result<Rows, Error> {
        for row in x.values.chunks_exact_mut(factors.len().max(1)) {
            row.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
        }
        Ok(x)
    }

    fn above(&self, x: Rows, deviations: f32) -> Result<Rows, Error> {
        let found = above(self.tier, &x.values, x.width, deviations);
        Ok(x.with(found))
    }

    fn add(&self, a: Rows, b: Rows) -> Result<Rows, Error> {
        Ok(a.with(add(&a.values, &b.values)))
    }

    fn columns(&self, x: &Rows, period: usize, columns: Range<usize>) -> Result<Rows, Error> {
        let mut values = Vec::with_capacity(x.values.len() / period.max(1) * columns.len());
        for piece in x.values.chunks_exact(period.max(1)) {
            values.extend_from_slice(&piece[columns.clone()]);
        }
        Ok(Rows { values, width: x.width / period.max(1) * columns.len() })
    }

    fn join(&self, parts: &[(&Rows, usize)]) -> Result<Rows, Error> {
        let width = parts.iter().map(|(part, _)| part.width).sum();
        let mut values = Vec::with_capacity(parts.iter().map(|(part, _)| part.values.len()).sum());
        let mut pieces: Vec<_> =
            parts.iter().map(|(part, each)| part.values.chunks_exact((*each).max(1))).collect();
        while let Some(first) = pieces.first_mut().and_then(Iterator::next) {
            values.extend_from_slice(first);
            pieces[1..].iter_mut().filter_map(Iterator::next).for_each(|it| values.extend(it));
        }
        Ok(Rows { values, width })
    }

    fn softmax(&self, x: Rows) -> Result<Vec<f32>, Error> {
        let mut all = Vec::with_capacity(x.values.len()); // As much as is planned, and no more.
        for row in x.values.chunks(x.width.max(1)) {
            all.extend(softmax(self.tier, row));
        }
        Ok(all)
    }

    fn gather(&self, x: &Rows, rows: &[usize]) -> Result<Rows, Error> {
        let mut gathered = Vec::with_capacity(rows.len() * x.width);
        for row in rows {
            gathered.extend_from_slice(&x.values[row * x.width..][..x.width]);
        }
        Ok(x.with(gathered))
    }

    fn zeros_like(&self, x: &Rows) -> Result<Rows, Error> {
        Ok(x.with(vec![0.0; x.values.len()]))
    }

    fn scatter_add(
        &self,
        sums: &mut Rows,
        rows: &[usize],
        weights: &[f32],
        x: &Rows,
    ) -> Result<(), Error> {
        let width = x.width.max(1);
        for ((row, weight), values) in rows.iter().zip(weights).zip(x.values.chunks_exact(width)) {
            let sums = &mut sums.values[row * width..][..width];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
        }
        Ok(())
    }
}
