//! A stage: a contiguous range of decoder layers with its KV pool and its threads.

use std::cell::RefCell;

use cake_checkpoint::{LayerRange, MappedTensor, ModelSpec, Watch};

use crate::batch::Batch;
use crate::block::DecoderLayer;
use crate::device::{Device, OnDevice, on};
use crate::error::Error;
use crate::loader::{LayerLoader, Weights};
use crate::memory::StepMemory;
use crate::options::EngineOptions;
use crate::rope::Frequencies;
use crate::row::{Hidden, RowLayout};
use crate::step::Step;

/// Decoder layers `[start, end)` of a model, ready to run steps.
///
/// The weights stay in the memory they were mapped to. Steps are idempotent, but where one puts the state of recurrent
/// layers in the slot that it is taken from: running another one again writes the same keys and values and returns the
/// same hidden states.
///
/// ```
/// use cake_checkpoint::{Checkpoint, LayerRange, Scheme};
/// use cake_engine::{Batch, BatchItem, Embedding, EngineOptions, Head, Stage};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/llama");
/// let checkpoint = Checkpoint::open(model)?;
/// let config = &checkpoint.config;
/// let weights = |name: &str| {
///     let tensor = checkpoint.tensors.iter().find(|tensor| tensor.name == name)?;
///     checkpoint.map(tensor).ok()
/// };
/// let options = EngineOptions::new(8);
/// let matrix = checkpoint.encoded_matrix(&checkpoint.embedding_matrix(), Scheme::AsStored)?;
/// let head = match checkpoint.head_matrix() {
///     Some(head) => checkpoint.encoded_matrix(&head, Scheme::AsStored)?,
///     None => matrix.clone(),
/// };
/// let norm = checkpoint.map(checkpoint.final_norm())?;
/// let embedding = Embedding::new(config, matrix, &weights, &options)?;
/// let head = Head::new(config, norm, head, &weights, &options)?;
///
/// // All layers in one stage, then in two, which could as well be on two devices.
/// let layers = config.layers.len();
/// let ids = [1, 5, 9];
/// let mut logits = Vec::new();
/// for bounds in [vec![0, layers], vec![0, 1, layers]] {
///     let (sequence, position, rows) = (1, 0, ids.len());
///     let (blocks, known, state) = (vec![0], 0, None);
///     let item = BatchItem { sequence, position, rows, prompt: true, blocks, known, state };
///     let batch = Batch { items: vec![item] };
///     let mut hidden = embedding.forward(&ids)?;
///     for pair in bounds.windows(2) {
///         let range = LayerRange::new(pair[0], pair[1]);
///         let mut stage = Stage::load(config, range, &weights, &options)?;
///         hidden = stage.forward(&batch, hidden)?;
///     }
///     logits.push(head.forward(hidden, ids.len())?);
/// }
/// assert_eq!(logits[0], logits[1], "a split changes not one bit");
/// # Ok(())
/// # }
/// ```
pub struct Stage {
    layers: LayerRange,
    row: RowLayout,
    /// Whether one of its layers has recurrent state.
    is_recurrent: bool,
    /// One per rotation of the model.
    frequencies: Vec<Frequencies>,
    parts: Box<dyn Parts>,
    options: EngineOptions,
    /// The files that weights are read from at each step.
    watch: Watch,
}

/// The layers of a stage on the device that computes them.
trait Parts: Send + Sync {
    /// Hidden states are `[rows, width]`, and so are those of the result.
    fn forward(
        &mut self,
        hidden: Hidden<Vec<f32>>,
        width: usize,
        step: &Step<'_>,
    ) -> Result<Hidden<Vec<f32>>, Error>;
}

struct PartsOn<D: Device> {
    device: D,
    /// One per layer of the range.
    layers: Vec<DecoderLayer<D>>,
    /// What a step takes of memory.
    memory: StepMemory,
}

impl<D: Device> Parts for PartsOn<D> {
    fn forward(
        &mut self,
        hidden: Hidden<Vec<f32>>,
        width: usize,
        step: &Step<'_>,
    ) -> Result<Hidden<Vec<f32>>, Error> {
        let Self { device, layers, memory } = self;
        let context = step.rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        device.compute(memory.limit(step.rows.len(), context), || {
            let sums = hidden.sums.map(|sums| device.rows(sums, width)).transpose()?;
            let mut hidden = Hidden { states: device.rows(hidden.states, width)?, sums };
            for index in 0..layers.len() {
                let (earlier, rest) = layers.split_at_mut(index);
                hidden = rest[0].forward(device, hidden, step, earlier)?;
            }
            let sums = hidden.sums.map(|sums| device.values(sums)).transpose()?;
            Ok(Hidden { states: device.values(hidden.states)?, sums })
        })
    }
}

/// What layers are loaded from.
struct Load<'a> {
    model: &'a ModelSpec,
    layers: LayerRange,
    weights: &'a Weights<'a>,
    options: &'a EngineOptions,
}

impl OnDevice for Load<'_> {
    type Output = Box<dyn Parts>;

    fn run<D: Device + 'static>(self, device: D) -> Result<Box<dyn Parts>, Error> {
        let Self { model, layers, weights, options } = self;
        let load = |layer| {
            let loader =
                LayerLoader { device: &device, weights, model, layer: Some(layer), options };
            DecoderLayer::load(&loader, &model.layers[layer])
        };
        let memory = StepMemory::new(D::scratch(), model, &model.layers[layers.start..layers.end]);
        let mut layers = layers.iter().map(load).collect::<Result<Vec<_>, Error>>()?;
        for index in 1..layers.len() {
            let (before, later) = layers.split_at_mut(index);
            before[index - 1].precede(&device, &later[0]);
        }
        Ok(Box::new(PartsOn { device, layers, memory }))
    }
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
        for layer in layers.iter() {
            let elsewhere = model.layers[layer].keys_of().filter(|of| *of < layers.start);
            if let Some(keys_of) = elsewhere {
                return Err(Error::KeysElsewhere { layer, keys_of });
            }
        }
        let options = EngineOptions {
            block_positions: options.block_positions.max(1), // Zero would divide nothing.
            ..options.clone()
        };
        let watch = RefCell::new(Watch::default());
        let weights: &Weights<'_> =
            &|name| weights(name).inspect(|tensor| watch.borrow_mut().add(tensor));
        let parts = on(&options, Load { model, layers, weights, options: &options })?;
        let watch = watch.into_inner();
        watch.check()?; // Small weights were read just now.
        Ok(Stage {
            layers,
            row: RowLayout::new(model, layers),
            is_recurrent: layers.iter().any(|layer| model.layers[layer].kept().state > 0),
            frequencies: model
                .rotations
                .iter()
                .map(|rotation| Frequencies::new(rotation, options.max_positions))
                .collect(),
            parts,
            options,
            watch,
        })
    }

    /// Runs one step: `hidden` is `[rows, width]`, row-major, the rows in the order of the batch's items, and so is the
    /// result, each as wide as [`ModelSpec::row_width`] says before the stage's first layer and after its last one.
    ///
    /// Keys and values of the rows are written into the blocks the items name, over what was there, and the state of recurrent
    /// layers into their slots.
    /// Blocks until done; the work is shared out between this thread and the stage's own.
    ///
    /// # Errors
    /// If the batch and `hidden` disagree or name positions or blocks that do not exist; the KV cache
    /// and all slots are then unchanged. [`Error::Damaged`] if a file of weights was: then the cache has what was made of zeros.
    pub fn forward(&mut self, batch: &Batch, hidden: Vec<f32>) -> Result<Vec<f32>, Error> {
        let width = self.row.before;
        let rows = batch.row_count().unwrap_or(usize::MAX);
        if rows.checked_mul(width) != Some(hidden.len()) {
            return Err(Error::WrongHidden { rows, width, found: hidden.len() });
        }
        let rows = batch.rows(&self.options)?;
        if self.is_recurrent {
            batch.check_states(&self.options)?;
        }
        if rows.is_empty() {
            return Ok(hidden);
        }
        let first_layer = self.layers.start;
        let (hidden, given) = self.row.apart(hidden, first_layer);
        let rotations = self.frequencies.iter().map(|it| it.rotation(&rows)).collect();
        let kinds = batch.kinds(self.options.numerics);
        let step = Step { items: &batch.items, rows, kinds, rotations, first_layer, given };
        let hidden = self.parts.forward(hidden, self.row.hidden, &step);
        self.watch.check()?;
        Ok(self.row.together(hidden?, &step.given))
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
