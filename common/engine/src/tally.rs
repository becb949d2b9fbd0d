//! What linear layers are multiplied with, added up while they compute: what errors of their weights count by.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cake_checkpoint::ColumnSquares;

/// Adds up squares of what the matrices of stages meet that are loaded with it
/// ([`EngineOptions::tally`](crate::EngineOptions::tally)), by the full names of their weights. Products of the processor
/// are counted, and not those with what is turned as it is loaded.
#[derive(Debug, Default)]
pub struct Tally {
    met: Mutex<BTreeMap<String, ColumnSquares>>,
}

impl Tally {
    /// What was met until now; begins anew.
    pub fn take(&self) -> BTreeMap<String, ColumnSquares> {
        std::mem::take(&mut *self.met.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One matrix that is counted.
#[derive(Clone, Debug)]
pub(crate) struct Tallied {
    pub(crate) tally: Arc<Tally>,
    /// The full name of its weight.
    pub(crate) weight: String,
}

impl Tallied {
    /// Adds rows of activations, `[rows, columns]`.
    pub(crate) fn add(&self, x: &[f32], columns: usize) {
        let mut all = self.tally.met.lock().unwrap_or_else(PoisonError::into_inner);
        let met = all.entry(self.weight.clone()).or_default();
        met.squares.resize(columns, 0.0);
        for row in x.chunks_exact(columns.max(1)) {
            met.rows += 1;
            for (sum, value) in met.squares.iter_mut().zip(row) {
                *sum += f64::from(*value) * f64::from(*value);
            }
        }
    }
}
