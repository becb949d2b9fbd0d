//! A stage: a contiguous range of decoder layers with its KV pool and its threads.

use std::cell::RefCell;

use cake_checkpoint::{LayerRange, MappedTensor, ModelSpec, Watch};

use crate::batch::Batch;
use crate::block::{DecoderLayer, Step};
use crate::device::cpu::isa::choice::chosen;
use crate::device::cpu::pool::Pool;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::EngineOptions;
use crate::rope::Frequencies;
use crate::tensors;

/// Decoder layers `[start, end)` of a model, ready to run steps.
///
/// The weights stay in the memory they were mapped to. Steps are idempotent: running one again
/// writes the same keys and values and returns the same hidden states.
pub struct Stage {
    layers: LayerRange,
    hidden_size: usize,
    /// One per rotation of the model.
    frequencies: Vec<Frequencies>,
    /// One per layer of the range.
    parts: Vec<DecoderLayer>,
    options: EngineOptions,
    pool: Pool,
    /// The files that weights are read from at each step.
    watch: Watch,
}

impl Stage {
    /// Builds the stage from the tensors that `weights` finds by full checkpoint name.
    ///
    /// # Errors
    /// If the layers are not in the model, a tensor is missing or is not what `model` says, the system
    /// refuses memory for the KV cache or threads, a file of weights was damaged, or
    /// [`cpu_tier`](crate::cpu_tier) fails.
    pub fn load(
        model: &ModelSpec,
        layers: LayerRange,
        weights: &dyn Fn(&str) -> Option<MappedTensor>,
        options: &EngineOptions,
    ) -> Result<Stage, Error> {
        let num_layers = model.layers.len();
        if layers.start > layers.end || layers.end > num_layers {
            return Err(Error::NoSuchLayers { layers, num_layers });
        }
        chosen()?;
        let options = EngineOptions {
            block_positions: options.block_positions.max(1), // Zero would divide nothing.
            ..options.clone()
        };
        let watch = RefCell::new(Watch::default());
        let weights: &dyn Fn(&str) -> Option<MappedTensor> =
            &|name| weights(name).inspect(|tensor| watch.borrow_mut().add(tensor));
        let mut parts = layers
            .iter()
            .map(|layer| {
                let loader = LayerLoader { weights, model, layer, options: &options };
                DecoderLayer::load(&loader, &model.layers[layer])
            })
            .collect::<Result<Vec<_>, Error>>()?;
        for index in 1..parts.len() {
            let (before, later) = parts.split_at_mut(index);
            before[index - 1].precede(&later[0]);
        }
        let watch = watch.into_inner();
        watch.check()?; // Small weights were read just now.
        Ok(Stage {
            layers,
            hidden_size: model.hidden_size,
            frequencies: model.rotations.iter().map(Frequencies::new).collect(),
            parts,
            pool: options.thread_pool()?,
            options,
            watch,
        })
    }

    /// Runs one step: `hidden` and the result are `[rows, hidden_size]`, row-major, the rows in the
    /// order of the batch's items.
    ///
    /// Keys and values of the rows are written into the blocks the items name, over what was there.
    /// Blocks until done; the work is shared out between this thread and the stage's own.
    ///
    /// # Errors
    /// If the batch and `hidden` disagree or name positions or blocks that do not exist; the KV cache
    /// is then unchanged. [`Error::Damaged`] if a file of weights was: then the cache has what was made of zeros.
    pub fn forward(&mut self, batch: &Batch, hidden: Vec<f32>) -> Result<Vec<f32>, Error> {
        let width = self.hidden_size;
        let rows = batch.row_count().unwrap_or(usize::MAX);
        if rows.checked_mul(width) != Some(hidden.len()) {
            return Err(Error::WrongHidden { rows, width, found: hidden.len() });
        }
        let rows = batch.rows(&self.options)?;
        if rows.is_empty() {
            return Ok(hidden);
        }
        let rotations = self.frequencies.iter().map(|it| it.rotation(&rows)).collect();
        let kinds = batch.kinds(self.options.numerics);
        let step = Step { items: &batch.items, rows, kinds, rotations };
        let parts = &mut self.parts;
        let hidden = self.pool.install(|| {
            let mut hidden = tensors::matrix(hidden, step.rows.len(), width)?;
            for layer in parts {
                hidden = layer.forward(hidden, &step)?;
            }
            Ok::<_, Error>(hidden.flatten_all()?.to_vec1()?)
        });
        self.watch.check()?;
        hidden
    }

    /// The layers of this stage.
    pub fn layers(&self) -> LayerRange {
        self.layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn can_move_to_another_thread() {
        fn check<T: Send>() {}
        check::<Stage>();
    }
}
