//! GGUF's blocks beside activations of 8 bits: candle's products, which round as llama.cpp's do.

use super::gguf::{Expected, expected, load, path, said};
use super::{LOGIT_TOLERANCE, Rounded, found, largest_difference, options, sample};
use crate::{DeviceKind, EngineOptions, Numerics, SamplingOptions};

/// How much further off a logit may be than llama.cpp's, which rounds beside other weights as well, and adds up in another
/// order.
const BESIDE_LLAMA_CPP: f32 = 1.25;

#[test]
fn blocks_beside_8_bits_say_nearly_what_the_reference_says() {
    let mut rounded = 0;
    for name in &found::names(&path("")) {
        let said = said(name);
        let number = |value: &serde_json::Value| value.as_f64().unwrap() as f32;
        // Of some files nobody has asked llama.cpp: `gguf` compares these with the reference.
        let Some(theirs) = said.get("llama_cpp_on_this_file") else { continue };
        let theirs = number(&theirs["max_first_logit_difference"]);
        let tolerance = BESIDE_LLAMA_CPP * theirs + LOGIT_TOLERANCE;
        let closest = number(&said["smallest_greedy_margin"]);
        let Expected { prompt_ids, greedy_ids, logits: last, .. } = expected(name);
        let of = |numerics| EngineOptions { numerics, ..options(DeviceKind::Candle, 2) };
        let mut model = load(name, &[], &of(Numerics::Fast));
        let mut logits = model.logits(0, &prompt_ids);
        let off = largest_difference(&logits[logits.len() - last.len()..], &last);
        println!("{name}: logits differ by {off:e}");
        assert!(off <= tolerance, "{name}: logits differ by {off}");
        let same = load(name, &[], &of(Numerics::Int8)).logits(0, &prompt_ids) == logits;
        assert!(same, "{name}: int8 is what fast is");
        rounded += usize::from(off > LOGIT_TOLERANCE);
        let mut ids = prompt_ids;
        let may = Rounded { name, tolerance, closest };
        for token in greedy_ids {
            let last = &logits[logits.len() - last.len()..];
            let found = sample(last, &ids, ids.len() as u64, &SamplingOptions::default()).token;
            if may.differ_at(&[found], &[token]).is_some() {
                let behind = last[found as usize] - last[token as usize];
                assert!(behind <= 2.0 * tolerance, "{name}: {found} is {behind} before {token}");
                break;
            }
            logits = model.next_logits(ids.len(), token);
            ids.push(token);
        }
    }
    assert!(rounded > 10, "{rounded} models have blocks that are multiplied as they are");
}
