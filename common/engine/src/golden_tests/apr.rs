//! Models that an APR file holds, in encodings that no kernel reads as they lie among others.

use super::{Model, answers_greedily, directory, fast, options};
use crate::{DeviceKind, EngineOptions};

const NAMES: [&str; 4] = ["llama-f32", "llama-f16-bf16", "llama-q8-q4", "llama3-q4k"];

/// The golden prompt, greedy answer and log-probabilities.
fn expected(name: &str) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let json = std::fs::read(directory(&format!("../golden-apr/{name}.json"))).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let ids = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let logprobs = json["greedy_logprobs"].as_array().unwrap().iter();
    let logprobs = logprobs.map(|logprob| logprob.as_f64().unwrap() as f32).collect();
    (ids("prompt_ids"), ids("greedy_ids"), logprobs)
}

fn check(name: &str, cuts: &[usize], options: &EngineOptions) {
    let (ids, greedy, logprobs) = expected(name);
    let mut model = Model::load(&format!("../golden-apr/{name}.apr"), cuts, options);
    let logits = model.logits(0, &ids);
    answers_greedily(name, &mut model, ids, logits, greedy.into_iter().zip(logprobs));
}

#[test]
fn every_device_says_what_the_reference_says() {
    for name in NAMES {
        for device in DeviceKind::on_processor() {
            check(name, &[], &options(device, 2));
            check(name, &[1], &options(device, 1));
        }
    }
}

#[test]
fn what_can_only_be_decoded_is_computed_with_in_f32_whatever_the_numerics() {
    let (prompt, _, _) = expected("llama-q8-q4");
    let logits = |options: &EngineOptions| {
        Model::load("../golden-apr/llama-q8-q4.apr", &[], options).logits(0, &prompt)
    };
    assert!(logits(&fast(2)) == logits(&options(DeviceKind::Cpu, 1)));
}

#[test]
fn blocks_are_unpacked_for_whole_numbers_where_numerics_are_fast() {
    for cuts in [&[][..], &[1]] {
        check("llama3-q4k", cuts, &fast(2));
    }
}
