//! How well a model predicts a text, in each way to store it: its perplexity, computed in this process as a stage of a
//! worker and the master's ends compute it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, MappedTensor, Scheme};
use cake_engine::{Batch, BatchItem, Embedding, EngineOptions, Head, Numerics, Stage};
use cake_master::calibration::{self, Reading, Sample};
use cake_master::model::{EndWeights, Model};
use cake_master::text::Text;

/// Rows of which logits are held at once.
const ROWS: usize = 128;

/// A model's weights, encoded.
pub struct Weights {
    model: Model,
    layers: HashMap<String, MappedTensor>,
    ends: EndWeights,
}

impl Weights {
    /// Reads the model at `path` and turns its weights into `scheme`, off where the text `calibrate` needs them least.
    ///
    /// # Errors
    /// A model that cannot be opened, or whose layers keep a state: texts are scored piece by piece. A text that says nothing.
    pub fn open(path: &Path, scheme: Scheme, calibrate: Option<&Path>) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open(&path.to_string_lossy())?);
        if let Some(text) = calibrate.filter(|_| scheme.weighs_errors()) {
            let reading = Reading::of(&Sample::read(text)?, &Text::of(&checkpoint.texts)?)?;
            let importance = calibration::measure(&checkpoint, &reading, &mut |_| true)?;
            checkpoint.weigh(Arc::new(importance));
        }
        let model = Model::new(checkpoint, scheme);
        let config = &model.checkpoint.config;
        let keeps_state = config.layers.iter().any(|layer| layer.kept().state > 0);
        ensure!(!keeps_state, "models with recurrent layers are not scored");
        let mut layers = HashMap::new();
        for layer in 0..config.layers.len() {
            layers.extend(model.mapped_layer(layer)?);
        }
        Ok(Self { layers, ends: model.ends()?, model })
    }

    /// Tokens that the model knows.
    pub fn vocab_size(&self) -> usize {
        self.model.checkpoint.config.vocab_size
    }

    /// Bytes of the layers' blobs.
    pub fn layer_bytes(&self) -> u64 {
        let layers = 0..self.model.checkpoint.config.layers.len();
        layers.map(|layer| self.model.blob_bytes(layer)).sum()
    }

    /// Bits of the layers' blobs per number of the layers.
    pub fn bits_per_weight(&self) -> f64 {
        let layers = self.model.checkpoint.config.layers.iter();
        let numbers = layers.flat_map(|layer| layer.tensors());
        let numbers: u64 = numbers.map(|tensor| tensor.shape.iter().product::<u64>()).sum();
        8.0 * self.layer_bytes() as f64 / numbers as f64
    }
}

/// A whole model in this process.
pub struct Scorer {
    embedding: Embedding,
    stage: Stage,
    head: Head,
    blocks: Vec<u32>,
}

impl Scorer {
    /// Loads weights to compute with `numerics` and to keep keys and values as `kv`, for texts of at most `context` tokens.
    ///
    /// # Errors
    /// Weights that the engine refuses.
    pub fn load(
        weights: &Weights,
        numerics: Numerics,
        kv: KvDtype,
        context: usize,
    ) -> Result<Scorer> {
        let Weights { model, layers, ends } = weights;
        let config = &model.checkpoint.config;
        let blocks = cake_engine::blocks_for(context);
        let threads = cake_engine::default_threads();
        let options = EngineOptions { kv, numerics, threads, ..EngineOptions::new(blocks) };
        let others = |name: &str| ends.others.get(name).cloned();
        let head = ends.head.clone().unwrap_or_else(|| ends.embedding.clone());
        let range = LayerRange::new(0, config.layers.len());
        Ok(Scorer {
            stage: Stage::load(config, range, &|name: &str| layers.get(name).cloned(), &options)?,
            embedding: Embedding::new(config, ends.embedding.clone(), &others, &options)?,
            head: Head::new(config, ends.norm.clone(), head, &others, &options)?,
            blocks: (0..blocks as u32).collect(),
        })
    }

    /// Negative log-likelihood of every token after the first `known`, at least one, summed, in nats.
    ///
    /// # Errors
    /// Tokens that the model does not have, or more than it was opened for.
    pub fn score(&mut self, ids: &[u32], known: usize) -> Result<f64> {
        let mut sum = 0.0;
        for position in (0..ids.len()).step_by(ROWS) {
            let rows = ROWS.min(ids.len() - position);
            let item = BatchItem {
                sequence: 1,
                position,
                rows,
                prompt: true,
                blocks: self.blocks.clone(),
                known: 0,
                state: None,
            };
            let hidden = self.embedding.forward(&ids[position..position + rows])?;
            let hidden = self.stage.forward(&Batch { items: vec![item] }, hidden)?;
            let logits = self.head.forward(hidden, rows)?;
            let next = &ids[position + 1..ids.len().min(position + rows + 1)];
            let rows = logits.chunks_exact(logits.len() / rows).zip(next);
            let unknown = rows.skip(known.saturating_sub(position + 1));
            sum += unknown.map(|(row, &next)| surprise(row, next)).sum::<f64>();
        }
        Ok(sum)
    }

    /// The perplexity of some texts, before each of which the model is given `lead`: what the mean over all their tokens
    /// comes to, but for the first of each where nothing leads to it.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn perplexity(&mut self, lead: &[u32], texts: &[Vec<u32>]) -> Result<f64> {
        let known = lead.len().max(1);
        let (mut sum, mut tokens) = (0.0, 0);
        for text in texts {
            let ids = [lead, text].concat();
            sum += self.score(&ids, known)?;
            tokens += ids.len().saturating_sub(known);
        }
        Ok((sum / tokens as f64).exp())
    }
}

/// Negative log-likelihood of the next token by the logits of a row.
fn surprise(row: &[f32], next: u32) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(row[next as usize] - largest)
}
