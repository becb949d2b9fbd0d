//! The whole decoder against what Hugging Face transformers says for tiny checkpoints of each family.

mod apr;
#[cfg(feature = "candle")]
mod blocks;
#[path = "../../../tests/golden/names.rs"]
mod found;
mod gguf;
mod kv;
mod longrope;
#[path = "../../../tests/golden/rounded.rs"]
mod rounded;
mod slices;

use std::collections::HashMap;
use std::path::PathBuf;

use rounded::{IN_BF16, PACKED, Rounded};

use cake_checkpoint::{Affine, Checkpoint, Encoding, FloatType, KvDtype, LayerRange, Scheme};

use crate::{
    Batch, BatchItem, DeviceKind, Embedding, EngineOptions, Error, Head, Numerics, SamplingOptions,
    Stage, StateSlots, sample,
};

/// Largest difference of a logit from the reference's: both compute in f32, in different orders; the
/// logits are some units large and pass through four to twelve layers.
const LOGIT_TOLERANCE: f32 = 2e-3;
/// The same with activations beside packed weights in codes of 16 bits: one part in 65,278 of the
/// largest of each group, at every product.
const LOGIT_TOLERANCE_CODES: f32 = 1e-2;
/// The same with keys and values rounded to 11 bits, which moves every score a little.
const LOGIT_TOLERANCE_KV_F16: f32 = 5e-2;
/// The same with activations of prompts, and packed weights, rounded to bf16 in MLPs, which has 8 bits.
/// These models are small and random: their sums are short.
const LOGIT_TOLERANCE_BF16: f32 = 2e-1;
/// The same with activations of 8 bits beside codes of 4, in MLPs.
const LOGIT_TOLERANCE_INT8: f32 = 5e-1;
/// Largest difference of a log-probability: as a logit's.
const LOGPROB_TOLERANCE: f32 = 2e-3;

/// What the reference answers.
struct Expected {
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_logprobs: Vec<f32>,
    /// How near the closest call of these was, in logits.
    closest: f32,
    /// `[prompt_ids, vocab_size]`.
    logits: Vec<f32>,
}

fn directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// Names some golden checkpoints, parted by commas, where time is dear: an emulator's kernels are not tried by more families,
/// whose mathematics is the same everywhere.
const SOME: &str = "CAKE_GOLDEN";

/// Every golden checkpoint, or those that the environment names.
fn names() -> Vec<String> {
    let all = found::names(&directory(""));
    let Ok(named) = std::env::var(SOME) else { return all };
    let named: Vec<String> = named.split(',').map(str::to_owned).collect();
    let unknown = named.iter().find(|name| !all.contains(name));
    assert_eq!(unknown, None, "{SOME} names what is not there");
    named
}

fn expected(name: &str) -> Expected {
    let json = std::fs::read(directory(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let ids = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let greedy_logprobs = json["greedy_logprobs"].as_array().unwrap();
    let file = std::fs::read(directory(name).join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let logits = tensors.tensor("logits").unwrap();
    Expected {
        prompt_ids: ids("prompt_ids"),
        greedy_ids: ids("greedy_ids"),
        closest: json["smallest_greedy_margin"].as_f64().unwrap() as f32,
        greedy_logprobs: greedy_logprobs.iter().map(|p| p.as_f64().unwrap() as f32).collect(),
        logits: logits.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

/// A whole model over one or more stages in this process.
struct Model {
    embedding: Embedding,
    stages: Vec<Stage>,
    head: Head,
    blocks: Vec<u32>,
    /// Where the state of each sequence after so many positions is,
    slots: HashMap<(u64, usize), u32>,
    /// and how many slots were written: they are taken in turn.
    written: usize,
}

/// Slots for state.
const SLOTS: usize = 128;

fn options(device: DeviceKind, threads: usize) -> EngineOptions {
    let (numerics, state_slots) = (Numerics::Exact, SLOTS);
    EngineOptions { threads, device, numerics, state_slots, ..EngineOptions::new(16) }
}

/// Our kernels with their default numerics.
fn fast(threads: usize) -> EngineOptions {
    EngineOptions { numerics: Numerics::Fast, ..options(DeviceKind::Cpu, threads) }
}

/// Whether prompts beside bf16 weights are rounded to bf16 here.
fn has_prompt_arithmetic() -> bool {
    matches!(crate::arithmetic().unwrap(), "amx" | "avx512-bf16")
}

impl Model {
    /// `cuts`: the layers that start a new stage, as far as the model has them.
    fn load(name: &str, cuts: &[usize], options: &EngineOptions) -> Model {
        Model::of(&Checkpoint::open(directory(name).to_str().unwrap()).unwrap(), cuts, options)
    }

    fn of(checkpoint: &Checkpoint, cuts: &[usize], options: &EngineOptions) -> Model {
        let config = &checkpoint.config;
        let weights = |name: &str| {
            let tensor = checkpoint.tensors.iter().find(|tensor| tensor.name == name)?;
            Some(checkpoint.map(tensor).unwrap())
        };
        let mut bounds = vec![0];
        let may = |cut: &&usize| **cut < config.layers.len() && config.may_begin(**cut);
        bounds.extend(cuts.iter().filter(may));
        bounds.push(config.layers.len());
        let stages = bounds
            .windows(2)
            .map(|pair| LayerRange::new(pair[0], pair[1]))
            .map(|layers| Stage::load(config, layers, &weights, options).unwrap())
            .collect();
        let matrix = |matrix| checkpoint.encoded_matrix(&matrix, Scheme::AsStored).unwrap();
        let embedding = matrix(checkpoint.embedding_matrix());
        let norm = checkpoint.map(checkpoint.final_norm()).unwrap();
        let head = checkpoint.head_matrix().map(matrix);
        let head = head.unwrap_or_else(|| embedding.clone());
        Model {
            embedding: Embedding::new(config, embedding, &weights, options).unwrap(),
            stages,
            head: Head::new(config, norm, head, &weights, options).unwrap(),
            // Out of order, so that a position that is taken for a slot is found out.
            blocks: vec![5, 2, 11, 0, 7, 15, 13, 4, 8, 10, 6, 12],
            slots: HashMap::new(),
            written: 0,
        }
    }

    /// Rows of a prompt.
    fn item(&mut self, sequence: u64, position: usize, rows: usize) -> BatchItem {
        let from = (position > 0).then(|| self.slots[&(sequence, position)]);
        let to = (self.written % SLOTS) as u32;
        self.written += 1;
        self.slots.insert((sequence, position + rows), to);
        let (blocks, state) = (self.blocks.clone(), Some(StateSlots { from, to }));
        BatchItem { sequence, position, rows, prompt: true, blocks, known: 0, state }
    }

    /// Logits of every row of one step.
    fn step(&mut self, batch: &Batch, ids: &[u32]) -> Vec<f32> {
        let mut hidden = self.embedding.forward(ids).unwrap();
        for stage in &mut self.stages {
            hidden = stage.forward(batch, hidden).unwrap();
        }
        self.head.forward(hidden, ids.len()).unwrap()
    }

    /// Logits of one generated token at `position`.
    fn next_logits(&mut self, position: usize, token: u32) -> Vec<f32> {
        let item = BatchItem { prompt: false, ..self.item(1, position, 1) };
        self.step(&Batch { items: vec![item] }, &[token])
    }

    /// Logits of `ids` of a prompt from `position` on.
    fn logits(&mut self, position: usize, ids: &[u32]) -> Vec<f32> {
        let batch = Batch { items: vec![self.item(1, position, ids.len())] };
        self.step(&batch, ids)
    }

    /// Logits of all of `ids`, in chunks of `chunk`.
    fn chunked(&mut self, ids: &[u32], chunk: usize) -> Vec<f32> {
        let chunks = ids.chunks(chunk).enumerate();
        chunks.flat_map(|(index, ids)| self.logits(index * chunk, ids)).collect()
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Checks prompt logits and 24 greedy tokens; returns the largest difference of a logit of a prompt.
fn check(name: &str, options: &EngineOptions, tolerance: f32) -> f32 {
    let expected = expected(name);
    let mut model = Model::load(name, &[], options);
    let rows = expected.prompt_ids.len();
    let mut logits = model.logits(0, &expected.prompt_ids);
    // Nothing is rounded where no more is off than by the order of sums.
    let rounded = tolerance > LOGIT_TOLERANCE;
    let may = Rounded { name, tolerance, closest: expected.closest };
    let difference = match rounded {
        true => may.compare(&logits, &expected.logits, rows),
        false => Some(largest_difference(&logits, &expected.logits)),
    };
    let Some(difference) = difference else { return f32::INFINITY };
    assert!(rounded || difference <= tolerance, "{name}: logits differ by {difference}");

    let vocab_size = logits.len() / rows;
    let mut ids = expected.prompt_ids.clone();
    let mut beyond = 0;
    for (&token, logprob) in expected.greedy_ids.iter().zip(&expected.greedy_logprobs) {
        let last = &logits[logits.len() - vocab_size..];
        let sampled = sample(last, &ids, ids.len() as u64, &SamplingOptions::default());
        if rounded && may.differ_at(&[sampled.token], &[token]).is_some() {
            break;
        }
        assert_eq!(sampled.token, token, "{name} after {} tokens", ids.len());
        let off = (sampled.logprob - logprob).abs();
        beyond += usize::from(off > LOGPROB_TOLERANCE.max(tolerance));
        let most = if rounded { may.rows(expected.greedy_ids.len()) } else { 0 };
        assert!(beyond <= most, "{name}: logprob differs by {off}");
        logits = model.next_logits(ids.len(), token);
        ids.push(token);
    }
    difference
}

#[test]
fn our_kernels_say_what_the_reference_says() {
    for name in &names() {
        check(name, &options(DeviceKind::Cpu, 2), LOGIT_TOLERANCE);
    }
}

#[test]
#[cfg(feature = "candle")]
fn candle_operations_say_what_the_reference_says() {
    for name in &names() {
        check(name, &options(DeviceKind::Candle, 2), LOGIT_TOLERANCE);
    }
}

#[test]
fn default_numerics_say_what_the_reference_says() {
    for name in &names() {
        let rounded = (IN_BF16.contains(&&**name) && has_prompt_arithmetic())
            || (PACKED.contains(&&**name) && crate::cpu_tier().unwrap() == "amx");
        let tolerance = if rounded { LOGIT_TOLERANCE_BF16 } else { LOGIT_TOLERANCE_CODES };
        let difference = check(name, &fast(2), tolerance);
        println!("{name}: logits differ by {difference:e}");
        let options = EngineOptions { kv: KvDtype::F16, ..fast(2) };
        let difference = check(name, &options, tolerance.max(LOGIT_TOLERANCE_KV_F16));
        println!("{name} with f16 keys: logits differ by {difference:e}");
    }
}

#[test]
fn activations_in_bytes_say_nearly_the_same() {
    // 4-bit codes of each kind, and numbers of 4 bits. The models are small and random, so their sums are short.
    for name in
        ["qwen2-mlx4", "lfm2-mlx4", "llama-awq4", "llama-ct-int4", "llama-gptq4", "llama-nvfp4"]
    {
        let prompt = expected(name).prompt_ids;
        let logits = |numerics| {
            Model::load(name, &[], &EngineOptions { numerics, ..fast(2) }).logits(0, &prompt)
        };
        let [exact, fast, int8] = [Numerics::Exact, Numerics::Fast, Numerics::Int8].map(logits);
        let (fast, int8) = (largest_difference(&fast, &exact), largest_difference(&int8, &exact));
        println!("{name}: logits differ by {fast:e} and {int8:e}");
        // With AMX, `fast` rounds most of MLPs as much.
        let is_coarser = int8 > fast || crate::cpu_tier().unwrap() == "amx";
        assert!(is_coarser && int8 < LOGIT_TOLERANCE_INT8, "{name}: {int8}");
    }
    // What has more bits stays.
    let prompt = expected("llama-mlx8").prompt_ids;
    let logits = |numerics| {
        let options = EngineOptions { numerics, ..fast(2) };
        Model::load("llama-mlx8", &[], &options).logits(0, &prompt)
    };
    assert!(logits(Numerics::Int8) == logits(Numerics::Fast));
}

#[test]
fn only_what_may_be_rounded_is() {
    let prompt = expected("qwen3").prompt_ids; // Its weights are bf16.
    let logits = |options: &EngineOptions| Model::load("qwen3", &[], options).logits(0, &prompt);
    let exact = logits(&options(DeviceKind::Cpu, 2));
    // Of 8 bits in MLPs: 16 everywhere move these logits by some 1e-4.
    const COARSE: f32 = 1e-3;
    let moved = largest_difference(&logits(&fast(2)), &exact);
    assert!(if has_prompt_arithmetic() { moved > COARSE } else { moved == 0.0 }, "{moved}");
    let generated = |options: &EngineOptions| {
        let mut model = Model::load("qwen3", &[], options);
        (0..).zip(&prompt).flat_map(|(at, &token)| model.next_logits(at, token)).collect::<Vec<_>>()
    };
    let moved = largest_difference(&generated(&fast(2)), &exact);
    let tiles = crate::cpu_tier().unwrap() == "amx";
    assert!(if tiles { moved > 0.0 && moved < COARSE } else { moved == 0.0 }, "{moved}");
}

#[test]
fn chunks_stages_and_threads_do_not_change_a_bit() {
    for (index, name) in names().iter().enumerate() {
        let prompt = expected(name).prompt_ids;
        let whole = Model::load(name, &[], &fast(1)).chunked(&prompt, 21);
        // Each number of threads and each way to cut a model, and not each beside each: no code knows of both. Two of
        // them for each model, in turn.
        let cases: [(usize, &[usize]); 5] =
            [(1, &[1, 3, 4]), (2, &[]), (2, &[2]), (3, &[1, 1]), (3, &[1, 3, 4])];
        let two = [2 * index, 2 * index + 1].map(|at| cases[at % cases.len()]);
        for (threads, cuts) in two {
            let mut model = Model::load(name, cuts, &fast(threads));
            for chunk in [1, 2, 7, 16, 21] {
                let same = model.chunked(&prompt, chunk) == whole;
                assert!(same, "{name} {threads} threads, cuts {cuts:?}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn going_back_does_not_change_a_bit() {
    for name in &names() {
        let prompt = expected(name).prompt_ids;
        let mut model = Model::load(name, &[], &fast(2));
        model.logits(0, &prompt[..9]);
        let tail = model.logits(9, &prompt[9..]);
        // Other tokens from position 9 on and past the end, then the right ones again.
        model.logits(9, &[3; 20]);
        let again = model.logits(9, &prompt[9..]);
        assert!(again == tail, "{name}");
    }
}

#[test]
fn rows_that_are_known_write_no_keys_and_take_their_state_along() {
    for name in ["llama", "qwen3_5", "falcon-h1"] {
        let prompt = expected(name).prompt_ids;
        let mut model = Model::load(name, &[], &fast(2));
        let whole = model.logits(0, &prompt);
        let next = model.next_logits(prompt.len(), 3);
        // Whatever the ids were, their keys stay; the state is that of the first rows once more.
        let first = BatchItem { known: 16, ..model.item(2, 0, 16) };
        model.step(&Batch { items: vec![first] }, &prompt[..16]);
        let rest = BatchItem { known: 16, ..model.item(2, 16, prompt.len() - 16) };
        let again = model.step(&Batch { items: vec![rest] }, &prompt[16..]);
        assert!(again == whole[whole.len() - again.len()..], "{name}");
        let litter = BatchItem { known: 16, ..model.item(3, 0, 16) };
        model.step(&Batch { items: vec![litter] }, &[9; 16]);
        assert!(model.next_logits(prompt.len(), 3) == next, "{name}");
    }
}

#[test]
fn sequences_in_one_step_do_not_change_a_bit() {
    for name in &names() {
        let prompt = expected(name).prompt_ids;
        let mut model = Model::load(name, &[], &fast(2));
        let whole = model.logits(0, &prompt);
        let alone = model.next_logits(prompt.len(), 3);
        // One sequence decodes a token while another takes all of the prompt.
        let one = BatchItem { prompt: false, ..model.item(1, prompt.len(), 1) };
        let other = BatchItem { blocks: vec![9, 1, 3], ..model.item(2, 0, prompt.len()) };
        let mut ids = vec![3];
        ids.extend(&prompt);
        let together = model.step(&Batch { items: vec![one, other] }, &ids);
        assert!(together[..alone.len()] == alone, "{name}");
        assert!(together[alone.len()..] == whole, "{name}");
    }
}

#[test]
fn long_prompts_in_chunks_are_what_the_reference_says() {
    for name in &names() {
        let json = std::fs::read(directory(name).join("expected.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let Some(prompt) = json.get("long_prompt_ids") else { continue };
        let ids = |list: &serde_json::Value| -> Vec<u32> {
            list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let (prompt, greedy) = (ids(prompt), ids(&json["long_greedy_ids"]));
        let file = std::fs::read(directory(name).join("expected.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let last = tensors.tensor("long_last_logits").unwrap();
        let last: Vec<f32> =
            last.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        for (device, chunk) in [(DeviceKind::Cpu, 64), (DeviceKind::Candle, 150)] {
            if !DeviceKind::on_processor().any(|it| it == device) {
                continue;
            }
            let mut model = Model::load(name, &[2], &options(device, 2));
            let mut logits = model.chunked(&prompt, chunk);
            logits.drain(..logits.len() - last.len());
            let off = largest_difference(&logits, &last);
            assert!(off <= LOGIT_TOLERANCE, "{name} on {device:?}: logits differ by {off}");
            for (at, &token) in (prompt.len()..).zip(&greedy) {
                let found = sample(&logits, &prompt, at as u64, &SamplingOptions::default());
                assert_eq!(found.token, token, "{name} on {device:?} after {at} tokens");
                logits = model.next_logits(at, token);
            }
        }
    }
}

#[test]
fn a_stage_refuses_weights_and_layers_that_are_not_there() {
    let checkpoint = Checkpoint::open(directory("llama").to_str().unwrap()).unwrap();
    let options = options(DeviceKind::Cpu, 1);
    let load = |layers| Stage::load(&checkpoint.config, layers, &|_| None, &options).err();
    let error = load(LayerRange::new(0, 1)).unwrap().to_string();
    assert_eq!(error, "tensor \"model.layers.0.input_layernorm.weight\" is missing");
    let error = load(LayerRange::new(3, 9)).unwrap().to_string();
    assert_eq!(error, "layers 3..9 are not in a model of 5 layers");
}

#[test]
fn every_device_refuses_a_kv_cache_that_nothing_holds() {
    let checkpoint = Checkpoint::open(directory("llama").to_str().unwrap()).unwrap();
    let find = |name: &str| Some(checkpoint.map(checkpoint.tensor(name)?).unwrap());
    for device in DeviceKind::on_processor() {
        let load = |kv_blocks| {
            let options = EngineOptions { kv_blocks, ..options(device, 1) };
            Stage::load(&checkpoint.config, LayerRange::new(0, 1), &find, &options).err()
        };
        assert!(matches!(load(usize::MAX), Some(Error::KvTooLarge { .. })), "{device:?}");
        // More than any processor addresses, and less than a size may be.
        let error = load(1 << 50);
        assert!(matches!(error, Some(Error::KvMemory { .. })), "{device:?}: {error:?}");
    }
}

#[test]
fn a_stage_refuses_matrices_that_are_not_what_their_tag_says() {
    let checkpoint = Checkpoint::open(directory("qwen2-mlx4").to_str().unwrap()).unwrap();
    let stored = checkpoint.tensors.iter().find_map(|tensor| tensor.encoding);
    let load = |tag: Option<Encoding>, without: &str| {
        let find = |name: &str| {
            let tensor = checkpoint.tensor(name).filter(|_| !name.ends_with(without))?;
            let tag = tensor.encoding.and(tag);
            Some(checkpoint.map(tensor).unwrap().with_encoding(tag))
        };
        let layers = LayerRange::new(0, 1);
        Stage::load(&checkpoint.config, layers, &find, &options(DeviceKind::Cpu, 1)).err()
    };
    assert!(load(stored, "\n").is_none(), "as it is stored");
    assert!(matches!(load(None, "\n"), Some(Error::NoEncoding { .. })));
    assert!(matches!(load(stored, ".scales"), Some(Error::MissingTensor { .. })));
    let other = Some(Encoding::Affine(Affine::Q8));
    assert!(matches!(load(other, "\n"), Some(Error::WrongShape { .. })));
    let plain = Some(Encoding::Float(FloatType::BF16));
    assert!(matches!(load(plain, "\n"), Some(Error::UnsupportedDtype { .. })));
    let wide = Affine::new(4, 128).map(Encoding::Affine);
    assert!(load(wide, "\n").is_some());
}

#[test]
fn a_stage_refuses_hidden_states_of_another_shape() {
    let mut model = Model::load("llama", &[], &options(DeviceKind::Cpu, 1));
    let batch = Batch { items: vec![model.item(1, 0, 2)] };
    let error = model.stages[0].forward(&batch, vec![0.0; 64]).unwrap_err();
    assert_eq!(error.to_string(), "hidden has 64 values, expected 2 rows of 64");
    let none = model.stages[0].forward(&Batch::default(), Vec::new()).unwrap();
    assert!(none.is_empty());
}

/// Checks that the likeliest tokens after `ids`, whose rows gave `logits`, are those that the reference says, with its
/// log-probabilities.
#[track_caller]
fn answers_greedily(
    name: &str,
    model: &mut Model,
    mut ids: Vec<u32>,
    mut logits: Vec<f32>,
    said: impl Iterator<Item = (u32, f32)>,
) {
    let vocab_size = logits.len() / ids.len();
    for (token, logprob) in said {
        let last = &logits[logits.len() - vocab_size..];
        let sampled = sample(last, &ids, ids.len() as u64, &SamplingOptions::default());
        assert_eq!(sampled.token, token, "{name} after {} tokens", ids.len());
        let difference = (sampled.logprob - logprob).abs();
        assert!(difference <= LOGPROB_TOLERANCE, "{name}: logprob differs by {difference}");
        logits = model.next_logits(ids.len(), token);
        ids.push(token);
    }
}
