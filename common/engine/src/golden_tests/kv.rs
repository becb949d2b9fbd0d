//! Whole models whose keys and values are rounded.

use super::*;

/// Largest difference of a logit from the reference's with keys and values in codes of 8 bits: a step is sixteen times one of
/// f16's, and more where a number is small beside others of its group.
const LOGIT_TOLERANCE_KV_Q8: f32 = 7e-1;
/// What two devices differ by then: where the order of sums moves a number over the middle between two codes, it has the other
/// code.
#[cfg(feature = "candle")]
const LOGIT_TOLERANCE_OTHER_CODES: f32 = 2e-2;

#[test]
fn half_precision_keys_and_values_say_nearly_the_same() {
    for name in &names() {
        let options = EngineOptions { kv: KvDtype::F16, ..options(DeviceKind::Cpu, 1) };
        check(name, &options, LOGIT_TOLERANCE_KV_F16);
    }
}

#[test]
fn keys_and_values_in_8_bits_say_nearly_the_same() {
    for name in &names() {
        let options = EngineOptions { kv: KvDtype::Q8, ..options(DeviceKind::Cpu, 2) };
        let difference = check(name, &options, LOGIT_TOLERANCE_KV_Q8);
        println!("{name} with q8 keys: logits differ by {difference:e}");
    }
}

#[test]
#[cfg(feature = "candle")]
fn every_device_keeps_the_same_8_bits() {
    for name in ["llama", "gemma3", "deepseek-v3", "falcon-h1"] {
        let prompt = expected(name).prompt_ids;
        let of = |device| {
            let options = EngineOptions { kv: KvDtype::Q8, ..options(device, 2) };
            let mut model = Model::load(name, &[], &options);
            let mut logits = model.chunked(&prompt, 7);
            logits.extend(model.next_logits(prompt.len(), 3));
            logits
        };
        let off = largest_difference(&of(DeviceKind::Cpu), &of(DeviceKind::Candle));
        println!("{name}: {off:e}");
        assert!(off <= LOGIT_TOLERANCE_OTHER_CODES, "{name}: {off}");
    }
}

#[test]
fn chunks_stages_and_threads_do_not_change_a_bit_of_what_8_bits_keep() {
    let in_8_bits = |threads| EngineOptions { kv: KvDtype::Q8, ..fast(threads) };
    for name in ["llama", "gemma3", "deepseek-v3", "falcon-h1"] {
        let prompt = expected(name).prompt_ids;
        let mut model = Model::load(name, &[], &in_8_bits(1));
        let whole = model.chunked(&prompt, 21);
        let next = model.next_logits(prompt.len(), 3);
        for (threads, cuts, chunk) in [(1, &[][..], 1), (2, &[1, 3, 4], 7), (3, &[2], 16)] {
            let mut model = Model::load(name, cuts, &in_8_bits(threads));
            let case = format!("{name} {threads} threads, cuts {cuts:?}, chunks of {chunk}");
            assert!(model.chunked(&prompt, chunk) == whole, "{case}");
            // As after a loss: where other tokens were, the rows are computed again.
            model.logits(0, &prompt[..9]);
            model.logits(9, &[3; 20]);
            assert!(
                model.logits(9, &prompt[9..]) == whole[whole.len() / prompt.len() * 9..],
                "{case}"
            );
            assert!(model.next_logits(prompt.len(), 3) == next, "{case}");
        }
    }
}
