//! Models that GGUF files hold, as llama.cpp's converter and quantizer write them.

use cake_checkpoint::Checkpoint;

use super::{LOGIT_TOLERANCE, Model, answers_greedily, directory, found, options};
use crate::{DeviceKind, EngineOptions};

/// What the reference answers: transformers, in f32, on the weights as the `gguf` package decodes them.
struct Expected {
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_logprobs: Vec<f32>,
    /// Of the last token of the prompt, `[vocab_size]`.
    logits: Vec<f32>,
}

fn path(name: &str) -> std::path::PathBuf {
    directory("../golden-gguf").join(name)
}

fn expected(name: &str) -> Expected {
    let json = std::fs::read(path(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let ids = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let numbers = |key: &str| -> Vec<f32> {
        json[key].as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect()
    };
    Expected {
        prompt_ids: ids("prompt_ids"),
        greedy_ids: ids("greedy_ids"),
        greedy_logprobs: numbers("greedy_logprobs"),
        logits: numbers("last_prompt_logits"),
    }
}

fn check(name: &str, cuts: &[usize], options: &EngineOptions) {
    let Expected { prompt_ids: ids, greedy_ids, greedy_logprobs, logits: last } = expected(name);
    let checkpoint = Checkpoint::open(path(name).to_str().unwrap()).unwrap();
    let mut model = Model::of(&checkpoint, cuts, options);
    let logits = model.logits(0, &ids);
    let vocab_size = last.len();
    let found = &logits[logits.len() - vocab_size..];
    let off = found.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= LOGIT_TOLERANCE, "{name}: logits differ by {off}");
    answers_greedily(name, &mut model, ids, logits, greedy_ids.into_iter().zip(greedy_logprobs));
}

#[test]
fn every_device_says_what_the_reference_says() {
    for name in found::names(&path("")) {
        for device in DeviceKind::on_processor() {
            check(&name, &[], &options(device, 2));
        }
        check(&name, &[1], &options(DeviceKind::Cpu, 1));
    }
}
