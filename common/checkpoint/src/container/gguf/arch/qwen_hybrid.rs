//! Qwen3-Next and Qwen3.5 to 3.8, of which most layers have a delta rule.

use serde_json::json;

use super::keys::Keys;
use super::qwen::shared_out;
use super::row::{Arch, Fields, PLAIN, There};
use crate::container::gguf::error::GgufError;
use crate::model::{DeltaInputs, DeltaSpec, ModelSpec, Name, Op};

/// How fast heads forget: there with a minus, and not as a logarithm.
const RATE: &str = "linear_attn.A";

/// What a layer has called by these names.
const NAMES: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_a", RATE),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_up_exps", "mlp.switch_mlp.gate_up_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

const HYBRID: Arch = Arch {
    partial: true,
    names: NAMES,
    ones: &[("ssm_conv1d.weight", 1), ("ffn_gate_inp_shexp.weight", 0)],
    ..PLAIN
};

pub(super) const QWEN35: Arch = Arch {
    name: "qwen35",
    class: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    more: |keys, _, fields| of_qwen35(keys, fields),
    form: keys_in_turn,
    ..HYBRID
};

pub(super) const QWEN35_MOE: Arch = Arch {
    name: "qwen35moe",
    experts: true,
    class: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    more: |keys, _, fields| {
        of_qwen35(keys, fields)?;
        experts(keys, fields)
    },
    form: keys_in_turn,
    ..HYBRID
};

pub(super) const QWEN3_NEXT: Arch = Arch {
    name: "qwen3next",
    experts: true,
    class: "Qwen3NextForCausalLM",
    model_type: "qwen3_next",
    more: |keys, _, fields| {
        delta(keys, fields)?;
        experts(keys, fields)
    },
    form: rates_by_head,
    ..HYBRID
};

fn of_qwen35(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    // Which part of a position turns what: of text, all parts are the same.
    keys.integers("rope.dimension_sections")?;
    delta(keys, fields)
}

/// Sizes of the delta rule, and which layers have it.
fn delta(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    const INNER: &str = "ssm.inner_size";
    const RECURRENT: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    for (field, key) in [
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
    ] {
        fields.insert(field.into(), json!(keys.size(key)?));
    }
    let (heads, inner) = (keys.size("ssm.time_step_rank")?, keys.size(INNER)?);
    if !inner.is_multiple_of(heads) {
        return Err(keys.unsupported(INNER, &format!("as many numbers for each of {heads} heads")));
    }
    fields.insert("linear_num_value_heads".into(), json!(heads));
    fields.insert("linear_value_head_dim".into(), json!(inner / heads));
    let interval = keys.unsigned(INTERVAL)?.unwrap_or(4);
    if interval == 0 {
        return Err(keys.unsupported(INTERVAL, "more than 0"));
    }
    let recurrent = match keys.flags_of_layers(RECURRENT)? {
        Some(flags) => flags,
        None if keys.flag(RECURRENT)?.is_some() => {
            return Err(keys.unsupported(RECURRENT, "a list with one for each layer"));
        }
        None => (1..=keys.layers).map(|layer| !layer.is_multiple_of(interval)).collect(),
    };
    let kind = |recurrent| if recurrent { "linear_attention" } else { "full_attention" };
    let types: Vec<&str> = recurrent.into_iter().map(kind).collect();
    fields.insert("layer_types".into(), json!(types));
    Ok(())
}

/// Every layer has experts.
fn experts(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    let inner = keys.size("expert_feed_forward_length")?;
    let dense = keys.unsigned("feed_forward_length")?.unwrap_or(inner);
    let shared = keys.unsigned("expert_shared_feed_forward_length")?.unwrap_or(dense);
    fields.insert("moe_intermediate_size".into(), json!(inner));
    fields.insert("shared_expert_intermediate_size".into(), json!(shared));
    fields.insert("num_experts".into(), json!(keys.size("expert_count")?));
    fields.insert("num_experts_per_tok".into(), json!(keys.size("expert_used_count")?));
    shared_out(keys, fields)?;
    if fields.get("model_type") == Some(&json!(QWEN3_NEXT.model_type)) {
        fields.insert("intermediate_size".into(), json!(dense));
        fields.insert("decoder_sparse_step".into(), json!(1));
    }
    Ok(())
}

/// Heads of values lie so that consecutive ones have other keys. Their matrices stay as they lie, also those whose columns they
/// are: the delta rule has the heads in that order.
fn keys_in_turn(_: &There<'_>, model: &mut ModelSpec) {
    for delta in deltas(model) {
        delta.rate = Name::Borrowed(RATE);
        delta.negative_rate = true;
        delta.keys_in_turn = true;
    }
}

/// Older files have all but rates as the Hub has it: by heads of keys.
fn rates_by_head(there: &There<'_>, model: &mut ModelSpec) {
    let is_delta = |op: &Op| matches!(op, Op::Delta(_));
    let first = model.layers.iter().position(|layer| layer.ops().any(is_delta));
    let is_older = first.is_some_and(|layer| there(&format!("blk.{layer}.ssm_in.weight")));
    for delta in deltas(model) {
        delta.rate = Name::Borrowed(RATE);
        delta.negative_rate = true;
        if !is_older {
            delta.inputs = DeltaInputs::RatesByHead {
                qkv: Name::Borrowed("linear_attn.in_proj_qkv"),
                gate: Name::Borrowed("linear_attn.in_proj_z"),
                correction_decay: Name::Borrowed("linear_attn.in_proj_ba"),
            };
        }
    }
}

fn deltas(model: &mut ModelSpec) -> impl Iterator<Item = &mut DeltaSpec> {
    let branches = model.layers.iter_mut().flat_map(|layer| &mut layer.branches);
    branches.filter_map(|branch| match &mut branch.op {
        Op::Delta(delta) => Some(delta),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden;

    #[test]
    fn older_files_have_all_inputs_by_heads_of_keys() {
        let inputs = |there: &There<'_>| {
            let mut model = golden("qwen3-next").config;
            rates_by_head(there, &mut model);
            deltas(&mut model).map(|delta| delta.inputs.clone()).next().unwrap()
        };
        let older = inputs(&|name| name == "blk.0.ssm_in.weight");
        assert!(matches!(older, DeltaInputs::ByHead { .. }), "{older:?}");
        let newer = inputs(&|name| name == "blk.0.attn_qkv.weight");
        assert!(matches!(newer, DeltaInputs::RatesByHead { .. }), "{newer:?}");
    }
}
