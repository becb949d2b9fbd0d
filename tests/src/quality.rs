//! How well a model predicts a text, in each way to store it: its perplexity, computed in this process as a stage of a
//! worker and the master's ends compute it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, MappedTensor, Scheme};
use cake_engine::{Batch, BatchItem, Embedding, EngineOptions, Head, Numerics, Stage};
use cake_master::model::Model;

/// Rows of which logits are held at once.
const ROWS: usize = 128;

/// A way to store a model and to compute with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// What weights are turned into.
    pub scheme: Scheme,
    /// How exactly products are computed.
    pub numerics: Numerics,
    /// Element type of keys and values.
    pub kv: KvDtype,
}

impl Setting {
    /// With the keys and values that these numerics have where nobody says another type.
    pub fn usual(scheme: Scheme, numerics: Numerics) -> Self {
        let kv = match numerics {
            Numerics::Exact => KvDtype::F32,
            Numerics::Fast | Numerics::Int8 => KvDtype::F16,
        };
        Self { scheme, numerics, kv }
    }
}

/// A whole model in this process.
pub struct Scorer {
    embedding: Embedding,
    stage: Stage,
    head: Head,
    blocks: Vec<u32>,
    /// Bytes of the layers' blobs.
    pub layer_bytes: u64,
}

impl Scorer {
    /// Opens the model at `path`, for texts of at most `context` tokens.
    ///
    /// # Errors
    /// A model that cannot be opened, or whose layers keep a state: texts are scored piece by piece.
    pub fn open(path: &Path, setting: Setting, context: usize) -> Result<Scorer> {
        let Setting { scheme, numerics, kv } = setting;
        let checkpoint = Arc::new(Checkpoint::open(&path.to_string_lossy())?);
        let model = Model::new(checkpoint, scheme);
        let config = &model.checkpoint.config;
        let keeps_state = config.layers.iter().any(|layer| layer.kept().state > 0);
        ensure!(!keeps_state, "models with recurrent layers are not scored");
        let blocks = cake_engine::blocks_for(context);
        let threads = cake_engine::default_threads();
        let options = EngineOptions { kv, numerics, threads, ..EngineOptions::new(blocks) };
        let layers = LayerRange::new(0, config.layers.len());
        let mut weights: HashMap<String, MappedTensor> = HashMap::new();
        for layer in layers.iter() {
            weights.extend(model.mapped_layer(layer)?);
        }
        let ends = model.ends()?;
        let others = |name: &str| ends.others.get(name).cloned();
        let head = ends.head.unwrap_or_else(|| ends.embedding.clone());
        Ok(Scorer {
            stage: Stage::load(config, layers, &|name: &str| weights.get(name).cloned(), &options)?,
            embedding: Embedding::new(config, ends.embedding, &others, &options)?,
            head: Head::new(config, ends.norm, head, &others, &options)?,
            blocks: (0..blocks as u32).collect(),
            layer_bytes: layers.iter().map(|layer| model.blob_bytes(layer)).sum(),
        })
    }

    /// Negative log-likelihood of every token but the first, summed, in nats.
    ///
    /// # Errors
    /// Tokens that the model does not have, or more than it was opened for.
    pub fn score(&mut self, ids: &[u32]) -> Result<f64> {
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
            sum += rows.map(|(row, &next)| surprise(row, next)).sum::<f64>();
        }
        Ok(sum)
    }

    /// The perplexity of some texts: what the mean over all their tokens but the first of each comes to.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn perplexity(&mut self, texts: &[Vec<u32>]) -> Result<f64> {
        let tokens: usize = texts.iter().map(|ids| ids.len().saturating_sub(1)).sum();
        let mut sum = 0.0;
        for ids in texts {
            sum += self.score(ids)?;
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
