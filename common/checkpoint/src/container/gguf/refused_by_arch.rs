//! What some architectures say beside what all do, each refused by what is wrong, in files that are well-formed.

use super::made::{BOOL, F32, I32, LIST, Made, TEXT, U32, all_refused_of, list, text};

/// How many heads of keys each layer has.
fn heads(it: &mut Made, arch: &str, numbers: &[i32]) {
    let numbers: Vec<Vec<u8>> = numbers.iter().map(|it| it.to_le_bytes().to_vec()).collect();
    it.put(&format!("{arch}.attention.head_count_kv"), LIST, list(I32, &numbers));
}

fn whole(it: &mut Made, key: &str, number: u32) {
    it.put(key, U32, number.to_le_bytes());
}

#[test]
fn wrong_convolutions_are_refused() {
    all_refused_of(
        "lfm2-bf16",
        &[
            (
                "a layer less",
                |it| heads(it, "lfm2", &[0, 0, 2, 0, 2, 0]),
                "\"lfm2.attention.head_count_kv\" in the metadata is a list of whole numbers, expected one number, or 7",
            ),
            (
                "other heads",
                |it| heads(it, "lfm2", &[0, 0, 2, 0, 4, 0, 0]),
                "or 7 that are 0 or all the same",
            ),
            ("heads below 0", |it| heads(it, "lfm2", &[0, 0, -2, 0, -2, 0, 0]), "head_count_kv"),
            ("no heads at all", |it| heads(it, "lfm2", &[0; 7]), "head_count_kv"),
            ("heads elsewhere", |it| heads(it, "lfm2", &[2, 0, 0, 0, 2, 0, 0]), "model.layers.0"),
            ("three heads", |it| heads(it, "lfm2", &[0, 0, 3, 0, 3, 0, 0]), "num_key_value_heads"),
            (
                "no taps",
                |it| it.drop("lfm2.shortconv.l_cache"),
                "metadata lack \"lfm2.shortconv.l_cache\"",
            ),
            ("other taps", |it| whole(it, "lfm2.shortconv.l_cache", 4), "conv.conv.weight"),
            (
                "a window",
                |it| whole(it, "lfm2.attention.sliding_window", 8),
                "\"lfm2.attention.sliding_window\" in the metadata is 8; nothing is known",
            ),
            (
                "both directions",
                |it| it.put("lfm2.attention.causal", BOOL, [0]),
                "\"lfm2.attention.causal\" in the metadata is false, expected true",
            ),
            (
                "a norm as others call it",
                |it| it.info("token_embd_norm.weight").name = b"output_norm.weight".into(),
                "\"model.norm.weight\"",
            ),
        ],
    );
    all_refused_of(
        "lfm2moe-bf16",
        &[
            (
                "another router",
                |it| whole(it, "lfm2moe.expert_gating_func", 1),
                "\"lfm2moe.expert_gating_func\" in the metadata is 1, expected 2",
            ),
            ("no router", |it| it.drop("lfm2moe.expert_gating_func"), "is missing, expected 2"),
            (
                "more that are dense",
                |it| whole(it, "lfm2moe.leading_dense_block_count", 3),
                "model.layers.2",
            ),
            ("more experts", |it| whole(it, "lfm2moe.expert_count", 7), "7 experts"),
            (
                "a scale of weights",
                |it| it.put("lfm2moe.expert_weights_scale", F32, 2f32.to_le_bytes()),
                "\"lfm2moe.expert_weights_scale\" in the metadata is 2; nothing is known",
            ),
        ],
    );
}

#[test]
fn wrong_stretches_are_refused() {
    all_refused_of(
        "mistral3-bf16",
        &[
            (
                "growth without a stretch",
                |it| it.put("mistral3.rope.scaling.type", TEXT, text(b"none")),
                "\"mistral3.attention.temperature_scale\" in the metadata is 0.3, expected 0",
            ),
            (
                "growth without a span",
                |it| it.drop("mistral3.rope.scaling.original_context_length"),
                "\"mistral3.attention.temperature_scale\" in the metadata is 0.3, expected 0",
            ),
            (
                "growth below 0",
                |it| it.put("mistral3.attention.temperature_scale", F32, (-1f32).to_le_bytes()),
                "llama_4_scaling_beta",
            ),
            (
                "a multiplier below 0",
                |it| {
                    let key = "mistral3.rope.scaling.yarn_log_multiplier";
                    it.put(key, F32, (-1f32).to_le_bytes());
                },
                "\"mistral3.rope.scaling.yarn_log_multiplier\" in the metadata is -1",
            ),
            (
                "another factor of scores",
                |it| it.put("mistral3.rope.scaling.yarn_attn_factor", F32, 2f32.to_le_bytes()),
                "yarn_attn_factor\" in the metadata is 2, expected 1",
            ),
        ],
    );
}
