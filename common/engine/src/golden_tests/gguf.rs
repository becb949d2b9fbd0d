//! Models that GGUF files hold, as llama.cpp's converter and quantizer write them.

use cake_checkpoint::Checkpoint;

use super::{
    LOGIT_TOLERANCE, Model, answers_greedily, directory, found, largest_difference, options,
};
use crate::testing::some_of;
use crate::{DeviceKind, EngineOptions};

/// What the reference answers: transformers, in f32, on the weights as the `gguf` package decodes them.
pub(super) struct Expected {
    pub(super) prompt_ids: Vec<u32>,
    pub(super) greedy_ids: Vec<u32>,
    greedy_logprobs: Vec<f32>,
    /// Of the last token of the prompt, `[vocab_size]`.
    pub(super) logits: Vec<f32>,
}

pub(super) fn path(name: &str) -> std::path::PathBuf {
    directory("../golden-gguf").join(name)
}

pub(super) fn said(name: &str) -> serde_json::Value {
    let json = std::fs::read(path(name).join("expected.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

pub(super) fn expected(name: &str) -> Expected {
    let json = said(name);
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

pub(super) fn load(name: &str, cuts: &[usize], options: &EngineOptions) -> Model {
    Model::of(&Checkpoint::open(path(name).to_str().unwrap()).unwrap(), cuts, options)
}

fn check(name: &str, cuts: &[usize], options: &EngineOptions) {
    let Expected { prompt_ids: ids, greedy_ids, greedy_logprobs, logits: last } = expected(name);
    let mut model = load(name, cuts, options);
    let logits = model.logits(0, &ids);
    let off = largest_difference(&logits[logits.len() - last.len()..], &last);
    assert!(off <= LOGIT_TOLERANCE, "{name}: logits differ by {off}");
    answers_greedily(name, &mut model, ids, logits, greedy_ids.into_iter().zip(greedy_logprobs));
}

#[test]
fn every_device_says_what_the_reference_says() {
    // Kernels are tried with blocks of all types elsewhere.
    for (index, name) in some_of(found::names(&path(""))).enumerate() {
        for device in DeviceKind::on_processor() {
            // One in two of them cut, and on one thread.
            let (cuts, threads): (&[usize], usize) =
                if index % 2 == 0 { (&[], 2) } else { (&[1], 1) };
            check(&name, cuts, &options(device, threads));
        }
    }
}
