//! Hidden states to logits: the final norm and the output head.

use std::sync::Arc;

use cake_checkpoint::{MappedMatrix, MappedTensor, ModelSpec, Watch};
use candle_core::Tensor;

use crate::batch::RowKinds;
use crate::block::RmsNorm;
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::isa::choice::chosen;
use crate::device::cpu::pool::Pool;
use crate::error::Error;
use crate::linear::Linear;
use crate::matrix::StoredMatrix;
use crate::options::EngineOptions;
use crate::tensors;

/// The final norm and the output head of a model, with threads of their own.
pub struct Head {
    norm: RmsNorm,
    head: Linear,
    hidden_size: usize,
    pool: Pool,
    /// The files that it is read from.
    watch: Watch,
}

impl Head {
    /// `norm` is `[hidden_size]`, `head` is `[vocab_size, hidden_size]` (the embedding when tied).
    ///
    /// # Errors
    /// If a tensor is not that, threads cannot be started, or [`cpu_tier`](crate::cpu_tier) fails.
    pub fn new(
        config: &ModelSpec,
        norm: MappedTensor,
        head: MappedMatrix,
        options: &EngineOptions,
    ) -> Result<Head, Error> {
        chosen()?;
        let (hidden_size, vocab_size) = (config.hidden_size, config.vocab_size);
        let mut watch = Watch::default();
        watch.add(&norm);
        head.tensors().for_each(|tensor| watch.add(tensor));
        let norm = RmsNorm::load("final norm", &norm, &config.final_norm, options.ops)?;
        watch.check()?;
        let head = StoredMatrix::new("output head", head, hidden_size)?;
        if head.rows() != vocab_size {
            let (name, expected, found) = ("output head".to_owned(), vocab_size, head.rows());
            return Err(Error::WrongRows { name, expected, found });
        }
        let EngineOptions { ops, numerics, .. } = *options;
        let arithmetic = (ops, numerics, Precision::Bf16x2); // No row counts as one of a prompt.
        Ok(Head {
            norm,
            head: Linear::new(Arc::new(head), 0..vocab_size, None, arithmetic)?,
            hidden_size,
            pool: options.thread_pool()?,
            watch,
        })
    }

    /// Logits `[rows, vocab_size]` of `hidden`, `[rows, hidden_size]`.
    ///
    /// # Errors
    /// [`Error::WrongHidden`] if `hidden` is not `rows` rows, [`Error::Damaged`] if a file of weights was.
    pub fn forward(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, Error> {
        let kinds = RowKinds::generated(rows);
        self.of_normed(hidden, rows, |normed| self.head.forward_values(normed, &kinds))
    }

    /// The final hidden states `[rows, hidden_size]`: `hidden`, of the same shape, after the norm.
    ///
    /// # Errors
    /// [`Error::WrongHidden`] if `hidden` is not `rows` rows, [`Error::Damaged`] if a file of weights was.
    pub fn normed(&self, hidden: Vec<f32>, rows: usize) -> Result<Vec<f32>, Error> {
        self.of_normed(hidden, rows, |normed| normed.flatten_all()?.to_vec1())
    }

    fn of_normed(
        &self,
        hidden: Vec<f32>,
        rows: usize,
        work: impl FnOnce(&Tensor) -> candle_core::Result<Vec<f32>>,
    ) -> Result<Vec<f32>, Error> {
        let width = self.hidden_size;
        if rows.checked_mul(width) != Some(hidden.len()) {
            return Err(Error::WrongHidden { rows, width, found: hidden.len() });
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        let values = self.pool.install(|| {
            let hidden = tensors::matrix(hidden, rows, width)?;
            Ok::<_, Error>(work(&self.norm.forward(&hidden)?)?)
        });
        self.watch.check()?;
        values
    }
}
