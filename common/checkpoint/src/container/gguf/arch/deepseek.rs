//! DeepSeek-V3 and R1, Kimi K2 and GLM-4.7-Flash: latent attention, and experts in groups.

use serde_json::json;

use super::glm::{GATING, GROUPS, SIGMOID, routed};
use super::keys::{HEADS_OF_KEYS, Keys};
use super::rope::MULTIPLIER;
use super::row::{Arch, Fields, PLAIN};
use crate::container::gguf::error::GgufError;

/// How wide keys and values are that are kept, or, in older files, those of a head;
const KEPT: [&str; 2] = ["attention.key_length", "attention.value_length"];
/// and those of a head in files that say the former.
const OF_HEAD: [&str; 2] = ["attention.key_length_mla", "attention.value_length_mla"];
const RANK: &str = "attention.kv_lora_rank";
const ROTARY: &str = "rope.dimension_count";

/// DeepSeek-V2 has the same name, and another router: the softmax of products, chosen by nothing else.
pub(super) const DEEPSEEK2: Arch = Arch {
    name: "deepseek2",
    experts: true,
    class: "DeepseekV3ForCausalLM",
    model_type: "deepseek_v3",
    heads,
    // A tenth of both, which are the same in published models. The tenth of a number of few digits is rounded as f32 is.
    stretch: Some(|tenth| [(tenth * 1e7).round() / 1e6; 2]),
    names: &[
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        // As MLX calls them.
        ("attn_k_b", "self_attn.embed_q"),
        ("attn_v_b", "self_attn.unembed_out"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    more: |keys, there, fields| {
        let dense = keys.unsigned("leading_dense_block_count")?.unwrap_or(0);
        let corrects = there(&format!("blk.{dense}.exp_probs_b.bias"));
        match keys.unsigned(GATING)? {
            Some(SIGMOID) => {}
            // Some do not say it: what is chosen by a sum with a tensor is the sigmoid.
            None if corrects => {}
            _ => return Err(keys.unsupported(GATING, &SIGMOID.to_string())),
        }
        if fields.get("rope_scaling").is_some_and(|it| it["mscale_all_dim"].is_null()) {
            return Err(keys.unsupported(MULTIPLIER, "a number above 0 beside a scaling"));
        }
        let [query, value] = widths(keys).map(|key| keys.size(key));
        let (query, rotary) = (query?, keys.head_dim);
        let Some(plain) = query.checked_sub(rotary).filter(|plain| *plain > 0) else {
            return Err(keys.unsupported(ROTARY, &format!("less than the {query} of a query")));
        };
        for (field, number) in [
            ("kv_lora_rank", keys.size(RANK)?),
            ("qk_nope_head_dim", plain),
            ("qk_rope_head_dim", rotary),
            ("v_head_dim", value?),
        ] {
            fields.insert(field.into(), json!(number));
        }
        let short = keys.unsigned("attention.q_lora_rank")?.filter(|rank| *rank > 0);
        fields.insert("q_lora_rank".into(), json!(short));
        fields.insert("rope_interleave".into(), json!(true));
        routed(keys, fields)?;
        grouped(keys, fields)
    },
    ..PLAIN
};

/// Into how many groups experts fall. Files that are older than these keys have V3 and R1, whose 8 groups are the family's where
/// nothing is said, and models without groups: these have other numbers of experts.
fn grouped(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    const OF_V3: u64 = 256;
    match GROUPS.map(|key| keys.has(key)) {
        [true, true] => {}
        [false, false] if keys.size("expert_count")? == OF_V3 => {}
        [false, false] => ["n_group", "topk_group"].into_iter().for_each(|field| {
            fields.insert(field.into(), json!(1));
        }),
        [true, false] => return Err(keys.unsupported(GROUPS[1], "a number beside that of groups")),
        [false, true] => return Err(keys.unsupported(GROUPS[0], "a number beside that of chosen")),
    }
    Ok(())
}

/// Where a file says how wide queries and values of a head are.
fn widths(keys: &Keys<'_>) -> [&'static str; 2] {
    if keys.has(OF_HEAD[0]) { OF_HEAD } else { KEPT }
}

/// Heads of latent attention. What is kept of a position is one key for all of them, whose beginning is the value, and newer files
/// say that of heads of keys and their widths; older ones have a head of keys for each of queries.
fn heads(keys: &mut Keys<'_>) -> Result<(), GgufError> {
    let (rank, rotary) = (keys.size(RANK)?, keys.size(ROTARY)?);
    let expected = match widths(keys) == OF_HEAD {
        true => {
            vec![(HEADS_OF_KEYS, 1), (KEPT[0], rank.saturating_add(rotary)), (KEPT[1], rank)]
        }
        false => vec![(HEADS_OF_KEYS, keys.heads)],
    };
    for (key, number) in expected {
        if keys.of_layers(key)? != number {
            return Err(keys.unsupported(key, &number.to_string()));
        }
    }
    // As everybody else counts them.
    (keys.kv_heads, keys.head_dim) = (keys.heads, rotary);
    Ok(())
}
