//! What encodings and numerics cost: perplexity of the demo model on text it was not trained on,
//! beside that of nothing encoded and nothing rounded (which the golden tests compare with the
//! reference implementation).
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, Scheme};
use cake_engine::{Batch, BatchItem, Embedding, EngineOptions, Head, Numerics, Stage};
use cake_master::model::Model;
use cake_master::text::Text;

/// Longest text scored, in tokens.
const CONTEXT: usize = 1000;
/// Largest relative change of perplexity by rounding. That of 4 bits is printed and only has to stay
/// in sight.
const ROUNDED: f64 = 5e-3;
const FOUR_BITS: f64 = 0.2;
/// Arithmetic, and what keys and values are kept as.
const NUMERICS: [(Numerics, KvDtype); 4] = [
    (Numerics::Exact, KvDtype::F32),
    (Numerics::Exact, KvDtype::Q8),
    (Numerics::Fast, KvDtype::F16),
    (Numerics::Fast, KvDtype::Q8),
];

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../master/demo-model")
}

/// The whole model in this process.
struct Scorer {
    embedding: Embedding,
    stage: Stage,
    head: Head,
    blocks: Vec<u32>,
}

impl Scorer {
    fn new(encoding: Scheme, numerics: Numerics, kv: KvDtype) -> Scorer {
        let path = demo_model();
        let checkpoint = Checkpoint::open(path.to_str().expect("UTF-8")).expect("a checkpoint");
        let model = Model { checkpoint: Arc::new(checkpoint), scheme: encoding };
        let checkpoint = &model.checkpoint;
        let blocks = cake_engine::blocks_for(CONTEXT);
        let options = EngineOptions { kv, numerics, threads: 2, ..EngineOptions::new(blocks) };
        let layers = LayerRange::new(0, checkpoint.config.layers.len());
        let layer = |layer| model.mapped_layer(layer).expect("readable");
        let weights: HashMap<_, _> = layers.iter().flat_map(layer).collect();
        let find = |name: &str| weights.get(name).cloned();
        let config = &checkpoint.config;
        let matrix = |matrix| checkpoint.encoded_matrix(&matrix, encoding).expect("readable");
        let embedding = matrix(checkpoint.embedding_matrix());
        let head = checkpoint.head_matrix().map_or_else(|| embedding.clone(), matrix);
        let norm = checkpoint.map(checkpoint.final_norm()).expect("readable");
        let others = |name: &str| checkpoint.tensor(name).and_then(|it| checkpoint.map(it).ok());
        Scorer {
            embedding: Embedding::new(config, embedding, &others, &options).expect("an embedding"),
            stage: Stage::load(config, layers, &find, &options).expect("a stage"),
            head: Head::new(config, norm, head, &others, &options).expect("a head"),
            blocks: (0..blocks as u32).collect(),
        }
    }

    /// Negative log-likelihood of every token but the first, summed.
    fn score(&mut self, ids: &[u32]) -> f64 {
        let (rows, blocks) = (ids.len(), self.blocks.clone());
        let item = BatchItem {
            sequence: 1,
            position: 0,
            rows,
            prompt: true,
            blocks,
            known: 0,
            state: None,
        };
        let hidden = self.embedding.forward(ids).expect("known tokens");
        let hidden = self.stage.forward(&Batch { items: vec![item] }, hidden).expect("a step");
        let logits = self.head.forward(hidden, rows).expect("logits");
        let width = logits.len() / rows;
        let surprise = |(row, &next): (&[f32], &u32)| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
            sum.ln() - f64::from(row[next as usize] - largest)
        };
        logits.chunks_exact(width).zip(&ids[1..]).map(surprise).sum()
    }
}

#[test]
fn perplexity_of_held_out_text_hardly_changes() {
    let _machine = crate::beside_others();
    let text = Text::open(&demo_model()).expect("a tokenizer");
    let held_out = std::fs::read_to_string(demo_model().join("heldout.txt")).expect("text");
    let texts: Vec<Vec<u32>> = held_out
        .split("<|endoftext|>")
        .map(|text_of_one| text.encode(text_of_one, false).expect("encodable"))
        .map(|ids| ids[..ids.len().min(CONTEXT)].to_vec())
        .collect();
    let tokens: usize = texts.iter().map(|ids| ids.len() - 1).sum();
    let mut exact = None; // The first: nothing encoded, nothing rounded.
    for encoding in Scheme::ALL {
        for (numerics, kv) in NUMERICS {
            let mut scorer = Scorer::new(encoding, numerics, kv);
            let total: f64 = texts.iter().map(|ids| scorer.score(ids)).sum();
            let perplexity = (total / tokens as f64).exp();
            let exact = *exact.get_or_insert(perplexity);
            let change = perplexity / exact - 1.0;
            println!("{encoding} {numerics} {kv}: {perplexity:.5}, {:+.3} %", change * 100.0);
            let allowed = if encoding == Scheme::Q4 { FOUR_BITS } else { ROUNDED };
            assert!(change.abs() <= allowed, "{encoding} {numerics} {kv}: {change}");
        }
    }
}
