//! Linear layers: GEMMs of rows of prefill, and GEMVs (or GEMMs of a few rows) of decode, with weights that stay as
//! they are stored.

use std::ops::Range;
use std::sync::Arc;

use super::buffer::UninitVec;
use super::gemm::case::RowClass;
use super::gemm::product::{Form, Gemm, Prepared};
use super::gemm::target::Target;
use super::gemm::weight::Weight;
use super::isa::tier::Tier;
use super::operand::Operand;
use super::pool::{self, Tasks};
use crate::batch::RowKinds;
use crate::device::StoredLinear;
use crate::error::Error;
use crate::matrix::StoredMatrix;
use crate::tally::Tallied;

/// `y = x · weightᵀ + bias` with a weight `[outputs, inputs]` that stays as it is stored.
///
/// The weight may be some rows of a larger matrix, so fused projections are several of these.
pub(crate) struct Linear {
    operand: Operand,
    rows: Range<usize>,
    bias: Option<Vec<f32>>,
    tier: Tier,
    /// The kernels for rows of prefill and of decode.
    prefill: &'static dyn Gemm,
    decode: &'static dyn Gemm,
    /// The weights of the products that follow those with this one, if they are known.
    next: Vec<(Arc<StoredMatrix>, Range<usize>)>,
    tallied: Option<Tallied>,
}

impl Linear {
    /// The layer with this weight on a processor of this tier.
    pub(crate) fn new(tier: Tier, linear: StoredLinear) -> Linear {
        let StoredLinear { matrix, rows, bias, numerics, precision, tallied } = linear;
        let operand = Operand::new(matrix).beside(precision, numerics);
        let prefill = operand.gemm(tier, numerics, RowClass::Prefill(precision));
        let decode = operand.gemm(tier, numerics, RowClass::Decode);
        Linear { operand, rows, bias, tier, prefill, decode, next: Vec::new(), tallied }
    }

    /// Number of columns of the weight.
    pub(crate) fn inputs(&self) -> usize {
        self.operand.matrix().columns()
    }

    /// Number of rows of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.rows.len()
    }

    /// Says which layers' products come at once after those that begin with this one, for threads that wait
    /// to prefetch.
    pub(crate) fn precede(&mut self, later: &[&Linear]) {
        self.next = later
            .iter()
            .map(|later| (later.operand.matrix().clone(), later.rows.clone()))
            .collect();
    }

    /// The products of several layers with the same `x`, `[rows, inputs]`, whose rows are of these `kinds`: each
    /// `[rows, outputs]`. Neighbouring layers whose kernels take one [`Form`] share `x` in it (quantized, for
    /// instance).
    ///
    /// # Errors
    /// [`Error::WrongActivations`] if the shapes do not fit.
    pub(crate) fn forward_each<const N: usize>(
        layers: [&Linear; N],
        x: &[f32],
        kinds: &RowKinds,
    ) -> Result<[Vec<f32>; N], Error> {
        let count = kinds.rows();
        let inputs = layers.first().map_or(0, |layer| layer.inputs());
        let fits = |layer: &&Linear| layer.inputs() == inputs && inputs * count == x.len();
        if let Some(layer) = layers.iter().find(|layer| !fits(layer)) {
            let (found, inputs) = (x.len(), layer.inputs());
            return Err(Error::WrongActivations { rows: count, inputs, found });
        }
        let mut results = layers.map(|layer| UninitVec::<f32>::new(count * layer.outputs()));
        let upcoming = layers.first().map_or_else(Vec::new, |first| first.upcoming());
        for (run, prompt) in kinds.runs() {
            let x = &x[run.start * inputs..run.end * inputs];
            let mut results = &mut results[..];
            // Products that take `x` in one form share its preparation, which takes memory: one form after the other.
            for same in layers.chunk_by(|a, b| a.form(prompt) == b.form(prompt)) {
                let first = same[0];
                let ready = first.gemm(prompt).prepare(first.tier, &first.weight(), x);
                let (these, others) = std::mem::take(&mut results).split_at_mut(same.len());
                results = others;
                let tasks: Vec<Tasks<'_>> = same
                    .iter()
                    .zip(these)
                    .map(|(layer, result)| {
                        let y = run.start * layer.outputs()..run.end * layer.outputs();
                        let y = &mut result.uninit()[y];
                        layer.tasks(prompt, &ready, Target::new(y, run.len(), layer.outputs()))
                    })
                    .collect();
                pool::expect(&upcoming);
                pool::run_all(&tasks);
            }
        }
        for (at, layer) in layers.iter().enumerate() {
            let of = |layer: &&Linear| layer.tallied.as_ref().map(|it| it.weight.clone());
            // Parts of one matrix meet the same rows once.
            if let Some(tallied) = &layer.tallied
                && layers[..at].iter().all(|it| of(it).as_ref() != Some(&tallied.weight))
            {
                tallied.add(x, inputs);
            }
        }
        // SAFETY: the runs are all rows, and of the rows of each the tasks of a layer, all of which are done, wrote
        // every output: that is the promise of `Gemm`.
        Ok(results.map(|result| unsafe { result.assume_init() }))
    }

    /// The kernel for rows of prefill, or of decode.
    fn gemm(&self, prompt: bool) -> &'static dyn Gemm {
        if prompt { self.prefill } else { self.decode }
    }

    /// The layer's rows of the matrix, as kernels take them.
    fn weight(&self) -> Weight<'_> {
        self.operand.weight(self.rows.clone())
    }

    /// How activations are prepared for the product.
    fn form(&self, prompt: bool) -> Form {
        self.gemm(prompt).form(self.weight().kind())
    }

    /// The tasks of the product `[rows, outputs]` with rows of prefill, or of decode.
    fn tasks<'a>(&'a self, prompt: bool, x: &'a Prepared<'a>, y: Target<'a>) -> Tasks<'a> {
        self.gemm(prompt).tasks(self.tier, self.weight(), self.bias.as_deref(), x, y)
    }

    /// The bytes that the products after this one read.
    fn upcoming(&self) -> Vec<&[u8]> {
        self.next.iter().map(|(matrix, rows)| matrix.stored(rows.clone())).collect()
    }
}
