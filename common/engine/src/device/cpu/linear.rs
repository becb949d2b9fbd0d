//! Products with weights that stay as they are stored.

use std::ops::Range;
use std::sync::Arc;

use super::buffer::{Room, Unset};
use super::gemm::inputs::Inputs;
use super::gemm::precision::Precision;
use super::isa::tier::Tier;
use super::pool::{self, Tasks};
use crate::batch::RowKinds;
use crate::device::StoredLinear;
use crate::error::Error;
use crate::matrix::{Form, StoredMatrix};
use crate::options::Numerics;

/// `y = x · weightᵀ + bias` with a weight that stays as it is stored.
///
/// The weight may be some rows of a larger matrix, so fused projections are several of these.
pub(crate) struct Linear {
    matrix: Arc<StoredMatrix>,
    rows: Range<usize>,
    bias: Option<Vec<f32>>,
    arithmetic: (Tier, Numerics),
    /// Of a prompt's rows.
    precision: Precision,
    /// What is multiplied after this one and those with it, if that is known.
    next: Vec<(Arc<StoredMatrix>, Range<usize>)>,
}

impl Linear {
    pub(crate) fn new(tier: Tier, linear: StoredLinear) -> Linear {
        let StoredLinear { matrix, rows, bias, numerics, precision } = linear;
        Linear { matrix, rows, bias, arithmetic: (tier, numerics), precision, next: Vec::new() }
    }

    /// Number of columns of the weight.
    pub(crate) fn inputs(&self) -> usize {
        self.matrix.columns()
    }

    /// Number of rows of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.rows.len()
    }

    /// Says which layers' products come at once after those that begin with this one, for threads that wait
    /// to ask memory for.
    pub(crate) fn precede(&mut self, later: &[&Linear]) {
        self.next = later.iter().map(|later| (later.matrix.clone(), later.rows.clone())).collect();
    }

    /// The products of several layers with the same `x`, `[rows, inputs]`, whose rows are of these `kinds` and which is
    /// made ready for the kernels once: each `[rows, outputs]`.
    ///
    /// # Errors
    /// [`Error::Operation`] if the shapes do not fit.
    pub(crate) fn forward_each<const N: usize>(
        layers: [&Linear; N],
        x: &[f32],
        kinds: &RowKinds,
    ) -> Result<[Vec<f32>; N], Error> {
        let count = kinds.rows();
        if let Some(layer) = layers.iter().find(|layer| layer.inputs() * count != x.len()) {
            let (found, inputs) = (x.len(), layer.inputs());
            return Err(Error::operation(format!("{found} values for {count} rows of {inputs}")));
        }
        let mut results = layers.map(|layer| Room::<f32>::new(count * layer.outputs()));
        let upcoming = layers.first().map_or_else(Vec::new, |first| first.upcoming());
        for (run, rounded) in kinds.runs() {
            let inputs = layers.first().map_or(0, |layer| layer.inputs());
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
                    .map(|(layer, places)| {
                        let y = run.start * layer.outputs()..run.end * layer.outputs();
                        layer.tasks(&ready, rounded, &mut places.places()[y])
                    })
                    .collect();
                pool::expect(&upcoming);
                pool::run_all(&tasks);
            }
        }
        // SAFETY: the runs are all rows, and of each row the tasks of a layer, all of which are done, write every
        // output.
        Ok(results.map(|room| unsafe { room.written() }))
    }

    /// What the products after this one and those with it read.
    fn upcoming(&self) -> Vec<&[u8]> {
        self.next.iter().map(|(matrix, rows)| matrix.stored(rows.clone())).collect()
    }

    /// How the weight takes its inputs, `rounded` if they are of a prompt.
    fn form(&self, rounded: bool) -> Form {
        self.matrix.form(self.arithmetic.0, rounded.then_some(self.precision))
    }

    /// The product.
    fn tasks<'a>(&'a self, x: &'a Inputs<'a>, rounded: bool, y: &'a mut Unset) -> Tasks<'a> {
        let x = (x, rounded.then_some(self.precision));
        self.matrix.multiply(self.arithmetic, self.rows.clone(), self.bias.as_deref(), x, y)
    }
}
