//! Several sequences decoded together by the engine, beside llama.cpp's server.
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, MappedTensor, Scheme};
use cake_engine::{
    Batch, BatchItem, Embedding, EngineOptions, Head, SamplingOptions, Stage, StateSlots, Weights,
    blocks_for, sample,
};
use cake_master::model::Model;
use cake_master::place::OwnWeights;

use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::peers::Together;
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≥ 2.5 × llama.cpp's server";
const RATIO: f64 = 2.5;
/// How many sequences count.
const SEQUENCES: usize = 8;
/// How many inform: the first and the last of all that are measured.
const FEW: usize = 1;
const MANY: usize = 16;
/// Tokens of every prompt and of every answer.
const PROMPT: usize = 64;
const ANSWER: usize = 64;
const THREADS: usize = 2;
/// Encodings, and the peer's file of the same precision.
const KINDS: [(Scheme, &str); 2] = [(Scheme::AsStored, "bf16"), (Scheme::Q8, "q8_0")];

/// What one encoding reached, a number per round.
#[derive(Default)]
struct Seen {
    ours: Vec<Together>,
    few: Vec<Together>,
    many: Vec<Together>,
    peer: Vec<Together>,
}

/// Measures both encodings, turn about with the peer if it is there.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let path = lab.model(ONE_B, &one_b())?;
    files::warm(&path)?;
    let peers = lab.peers();
    for (encoding, gguf) in KINDS {
        let mut whole = Whole::open(&path, encoding)?;
        whole.run(&prompts(FEW))?; // Brings all of it into memory.
        let mut seen = Seen::default();
        for _ in lab.rounds(&encoding.to_string()) {
            seen.few.push(whole.run(&prompts(FEW))?);
            seen.many.push(whole.run(&prompts(MANY))?);
            seen.ours.push(whole.run(&prompts(SEQUENCES))?);
            if let Some(peers) = peers {
                seen.peer.push(peers.llama_server(gguf, &prompts(SEQUENCES), ANSWER)?);
            }
        }
        report(encoding, &seen, table);
    }
    Ok(())
}

fn report(encoding: Scheme, seen: &Seen, table: &mut Table) {
    for (sequences, rates) in [(FEW, &seen.few), (MANY, &seen.many)] {
        let Together { total, decode } = medians(rates);
        let words = format!("{decode:.1} tok/s decoding, {total:.1} with prompts");
        let what = format!("{sequences} sequences decoded together, 2 threads, {encoding}");
        table.inform(&what, Measured::new(decode, words));
    }
    let what = format!("{SEQUENCES} sequences decoded together, 2 threads, {encoding}");
    let (ours, peer) = (medians(&seen.ours), medians(&seen.peer));
    let words = format!("{:.1} tok/s decoding, {:.1} with prompts", ours.decode, ours.total);
    if seen.peer.is_empty() {
        table.inform(&what, Measured::new(ours.decode, words));
        table.not_shown(&format!("{what}, beside llama.cpp"), BAR, "no --peers directory".into());
        return;
    }
    let ratio = ours.decode / peer.total;
    let (decoding, whole) = (ours.decode / peer.decode, ours.total / peer.total);
    let words = format!(
        "{words}; llama.cpp's server {:.1} in all, {:.1} decoding: {ratio:.2} × its total; like for like {decoding:.2} × and {whole:.2} ×",
        peer.total, peer.decode,
    );
    let measured = Measured::new(ratio, words).beside("llama.cpp's server", ours.total, peer.total);
    table.judged(&what, measured, BAR, ratio >= RATIO);
}

fn medians(rates: &[Together]) -> Together {
    let of = |rate: fn(&Together) -> f64| median(rates.iter().map(rate).collect());
    Together { total: of(|rates| rates.total), decode: of(|rates| rates.decode) }
}

/// As many different prompts, their ids spread over the vocabulary.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let id = |index: usize| 300 + (index * 7919 % 127_000) as u32;
    let prompt = |sequence: usize| (0..PROMPT).map(|at| id(sequence * PROMPT + at)).collect();
    (0..count).map(prompt).collect()
}

/// A whole model in this process, held as the master holds it when it runs alone.
struct Whole {
    embedding: Embedding,
    stage: Stage,
    head: Head,
    hidden_size: usize,
    vocab_size: usize,
}

impl Whole {
    /// Room for [`MANY`] sequences of a prompt and an answer.
    fn open(path: &Path, encoding: Scheme) -> Result<Whole> {
        let path = path.to_str().context("the model's path is not UTF-8")?;
        let model = Model::new(Arc::new(Checkpoint::open(path)?), encoding);
        let checkpoint = &model.checkpoint;
        let config = &checkpoint.config;
        let options = EngineOptions {
            kv: KvDtype::F16,
            max_positions: PROMPT + ANSWER,
            threads: THREADS,
            state_slots: MANY,
            ..EngineOptions::new(MANY * blocks_for(PROMPT + ANSWER))
        };
        let layers = LayerRange::new(0, config.layers.len());
        let mut weights: HashMap<String, MappedTensor> = HashMap::new();
        for layer in layers.iter() {
            weights.extend(model.mapped_layer(layer)?);
        }
        let mut ends = model.ends()?;
        let layer = weights.iter_mut().map(|(name, tensor)| (name.clone(), tensor));
        let read_whole = layer.chain(ends.read_whole()).collect();
        OwnWeights::new(Weights::Auto, false).settle(read_whole, u64::MAX, 0, THREADS)?;
        let find = |name: &str| weights.get(name).cloned();
        let others = |name: &str| ends.others.get(name).cloned();
        let head = ends.head.unwrap_or_else(|| ends.embedding.clone());
        Ok(Whole {
            embedding: Embedding::new(config, ends.embedding, &others, &options)?,
            stage: Stage::load(config, layers, &find, &options)?,
            head: Head::new(config, ends.norm, head, &others, &options)?,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
        })
    }

    /// Answers all prompts greedily at once: one step for the prompts, then a row of each sequence
    /// in every step.
    fn run(&mut self, prompts: &[Vec<u32>]) -> Result<Together> {
        let sequences = prompts.len();
        let started = Instant::now();
        let hidden = self.step(&prompts.concat(), sequences, 0)?;
        let ends = hidden.chunks_exact(PROMPT * self.hidden_size);
        let last = |rows: &[f32]| rows[(PROMPT - 1) * self.hidden_size..].to_vec();
        let mut ids = self.choose(ends.flat_map(last).collect(), PROMPT)?;
        let first = Instant::now();
        for position in PROMPT..PROMPT + ANSWER - 1 {
            let hidden = self.step(&ids, sequences, position)?;
            ids = self.choose(hidden, position + 1)?;
        }
        let end = Instant::now();
        let rate =
            |tokens: usize, from: Instant| (sequences * tokens) as f64 / (end - from).as_secs_f64();
        Ok(Together { total: rate(ANSWER, started), decode: rate(ANSWER - 1, first) })
    }

    /// Hidden states after all layers of `ids`, an equal number for each sequence from `position`.
    fn step(&mut self, ids: &[u32], sequences: usize, position: usize) -> Result<Vec<f32>> {
        let blocks = blocks_for(PROMPT + ANSWER) as u32;
        let item = |sequence: u32| BatchItem {
            sequence: u64::from(sequence),
            position,
            rows: ids.len() / sequences,
            prompt: position == 0,
            blocks: (sequence * blocks..(sequence + 1) * blocks).collect(),
            known: 0,
            state: Some(StateSlots { from: (position > 0).then_some(sequence), to: sequence }),
        };
        let batch = Batch { items: (0..sequences as u32).map(item).collect() };
        Ok(self.stage.forward(&batch, self.embedding.forward(ids)?)?)
    }

    /// The best token after each row, to stand at `position`.
    fn choose(&self, hidden: Vec<f32>, position: usize) -> Result<Vec<u32>> {
        let rows = hidden.len() / self.hidden_size;
        let logits = self.head.forward(hidden, rows)?;
        let greedy = SamplingOptions::default();
        let choose = |row: &[f32]| sample(row, &[], position as u64, &greedy).token;
        Ok(logits.chunks_exact(self.vocab_size).map(choose).collect())
    }
}
