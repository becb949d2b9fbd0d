//! What some architectures say beside what all do, each refused by what is wrong, in files that are well-formed.

use super::made::{BOOL, F32, I32, LIST, Made, TEXT, U32, U64, all_refused_of, list, opened, text};
use crate::model::Op;

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
        &Made::of("lfm2-bf16"),
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
        &Made::of("lfm2moe-bf16"),
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
            (
                "weights that are not divided by their sum",
                |it| it.put("lfm2moe.expert_weights_norm", BOOL, [0]),
                "\"lfm2moe.expert_weights_norm\" in the metadata is false, expected true",
            ),
        ],
    );
}

#[test]
fn wrong_stretches_are_refused() {
    all_refused_of(
        &Made::of("mistral3-bf16"),
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
    all_refused_of(
        &Made::of("granite-bf16"),
        &[
            (
                "a multiplier that others have",
                |it| {
                    let key = "granite.rope.scaling.yarn_log_multiplier";
                    it.put(key, F32, 1f32.to_le_bytes());
                },
                "\"granite.rope.scaling.yarn_log_multiplier\" in the metadata is 1, expected 0",
            ),
            (
                "nothing that rotates",
                |it| it.put("granite.rope.scaling.finetuned", BOOL, [0]),
                "\"granite.rope.scaling.finetuned\" in the metadata is false, expected true",
            ),
            (
                "no scale",
                |it| it.drop("granite.logit_scale"),
                "metadata lack \"granite.logit_scale\"",
            ),
        ],
    );
}

#[test]
fn older_files_say_nothing_of_groups() {
    let groups = |change: fn(&mut Made)| {
        let mut made = Made::of("deepseek2-bf16");
        change(&mut made);
        let model = opened(&made.bytes()).expect("a model").config;
        let mut ops = model.layers.iter().flat_map(|layer| layer.ops());
        let router = ops.find_map(|op| match op {
            Op::Experts(experts) => Some(experts.router.clone()),
            _ => None,
        });
        router.expect("experts").groups
    };
    assert!(groups(|_| ()).is_some_and(|it| it.count > 1));
    let without = groups(|it| {
        it.drop("deepseek2.expert_group_count");
        it.drop("deepseek2.expert_group_used_count");
    });
    assert!(without.is_none_or(|it| it.count == 1), "{without:?}");
}

#[test]
fn wrong_latents_are_refused() {
    all_refused_of(
        &Made::of("deepseek2-bf16"),
        &[
            (
                "no rank",
                |it| it.drop("deepseek2.attention.kv_lora_rank"),
                "metadata lack \"deepseek2.attention.kv_lora_rank\"",
            ),
            (
                "nothing that rotates",
                |it| it.drop("deepseek2.rope.dimension_count"),
                "metadata lack \"deepseek2.rope.dimension_count\"",
            ),
            (
                "groups, and not how many are chosen",
                |it| it.drop("deepseek2.expert_group_used_count"),
                "\"deepseek2.expert_group_used_count\" in the metadata is missing",
            ),
            (
                "another rank",
                |it| whole(it, "deepseek2.attention.kv_lora_rank", 23),
                "\"deepseek2.attention.key_length\" in the metadata is 32, expected 31",
            ),
            (
                "a rank past all numbers",
                |it| it.put("deepseek2.attention.kv_lora_rank", U64, u64::MAX.to_le_bytes()),
                "\"deepseek2.attention.key_length\"",
            ),
            (
                "another width of values that are kept",
                |it| whole(it, "deepseek2.attention.value_length", 16),
                "\"deepseek2.attention.value_length\" in the metadata is 16, expected 24",
            ),
            (
                "heads of keys",
                |it| whole(it, "deepseek2.attention.head_count_kv", 4),
                "\"deepseek2.attention.head_count_kv\" in the metadata is 4, expected 1",
            ),
            (
                "heads of keys that are not said",
                |it| it.drop("deepseek2.attention.head_count_kv"),
                "metadata lack \"deepseek2.attention.head_count_kv\"",
            ),
            (
                "queries that only rotate",
                |it| whole(it, "deepseek2.attention.key_length_mla", 8),
                "\"deepseek2.rope.dimension_count\" in the metadata is 8, expected less than the 8",
            ),
            (
                "no width of values",
                |it| it.drop("deepseek2.attention.value_length_mla"),
                "metadata lack \"deepseek2.attention.value_length_mla\"",
            ),
            (
                "other values",
                |it| whole(it, "deepseek2.attention.value_length_mla", 20),
                "self_attn",
            ),
            ("three heads", |it| whole(it, "deepseek2.attention.head_count", 3), "self_attn"),
            (
                "short queries of another width",
                |it| whole(it, "deepseek2.attention.q_lora_rank", 31),
                "self_attn.q_a",
            ),
            (
                "the softmax",
                |it| whole(it, "deepseek2.expert_gating_func", 1),
                "\"deepseek2.expert_gating_func\" in the metadata is 1, expected 2",
            ),
            (
                "no router that is known",
                |it| {
                    it.drop("deepseek2.expert_gating_func");
                    it.info("blk.1.exp_probs_b.bias").name = b"blk.0.exp_probs_b.bias".into();
                },
                "\"deepseek2.expert_gating_func\" in the metadata is missing, expected 2",
            ),
            (
                "queries that grow",
                |it| it.put("deepseek2.attention.temperature_scale", F32, 1f32.to_le_bytes()),
                "\"deepseek2.attention.temperature_scale\" in the metadata is 1; nothing is known",
            ),
            (
                "no keys",
                |it| it.info("blk.2.attn_k_b.weight").name = b"blk.2.attn_k_c.weight".into(),
                "\"blk.2.attn_k_c.weight\" is none that deepseek2 has",
            ),
            (
                "keys and values in one beside both",
                |it| {
                    let mut other = it.info("blk.2.attn_kv_a_norm.weight").clone();
                    other.name = b"blk.2.attn_kv_b.weight".into();
                    other.offset = it.data.len().next_multiple_of(32) as u64;
                    it.data.resize(other.offset as usize + 96, 0);
                    it.infos.push(other);
                },
                "self_attn.kv_b_proj",
            ),
            (
                "keys that are not turned",
                |it| it.info("blk.2.attn_k_b.weight").dims.swap(0, 1),
                "self_attn.embed_q.weight",
            ),
        ],
    );
    all_refused_of(
        &Made::of("deepseek2-q4"),
        &[
            (
                "a stretch without a scale of scores",
                |it| it.drop("deepseek2.rope.scaling.yarn_log_multiplier"),
                "\"deepseek2.rope.scaling.yarn_log_multiplier\" in the metadata is missing, expected a number above 0",
            ),
            (
                "blocks that are no rows",
                |it| it.info("blk.2.attn_k_b.weight").dims = vec![128, 32, 1],
                "self_attn.embed_q.weight",
            ),
        ],
    );
    all_refused_of(
        &Made::of("deepseek2-older-bf16"),
        &[
            (
                "one head of keys",
                |it| whole(it, "deepseek2.attention.head_count_kv", 1),
                "\"deepseek2.attention.head_count_kv\" in the metadata is 1, expected 4",
            ),
            (
                "widths that newer files say",
                |it| whole(it, "deepseek2.attention.key_length_mla", 24),
                "\"deepseek2.attention.head_count_kv\" in the metadata is 4, expected 1",
            ),
            ("no layer that predicts", |it| it.drop("deepseek2.nextn_predict_layers"), "\"blk.5."),
        ],
    );
}
