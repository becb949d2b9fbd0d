//! Gemma 2 and 3.

use serde_json::json;

use super::keys::Keys;
use super::row::{Arch, Fields, PLAIN};
use crate::container::gguf::error::GgufError;

/// What layers call their norms.
const NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

pub(super) const GEMMA2: Arch = Arch {
    name: "gemma2",
    class: "Gemma2ForCausalLM",
    model_type: "gemma2",
    names: NORMS,
    more: |keys, _, fields| {
        windows(keys, fields, 2)?;
        // How many layers the largest has, whose queries are scaled in another way: the format cannot say it.
        scalar(keys, fields, 46)?;
        for bound in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(found) = keys.number(bound)? {
                fields.insert(bound.into(), json!(found));
            }
        }
        Ok(())
    },
    ..PLAIN
};

pub(super) const GEMMA3: Arch = Arch {
    name: "gemma3",
    class: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    names: NORMS,
    more: |keys, _, fields| {
        windows(keys, fields, 6)?;
        scalar(keys, fields, 62)?; // Likewise.
        let base = keys.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
        fields.insert("rope_local_base_freq".into(), json!(base));
        Ok(())
    },
    ..PLAIN
};

/// Which layers see a window: all but the last of each so many, unless the file says it.
fn windows(keys: &Keys<'_>, fields: &mut Fields, default: u64) -> Result<(), GgufError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let flags = match keys.flags_of_layers(PATTERN)? {
        Some(flags) => flags,
        None => {
            let period = keys.unsigned(PATTERN)?.unwrap_or(default);
            let is_last = |layer: u64| (layer + 1).checked_rem(period) == Some(0);
            (0..keys.layers).map(|layer| !is_last(layer)).collect()
        }
    };
    let kind = |slides| if slides { "sliding_attention" } else { "full_attention" };
    let types: Vec<&str> = flags.into_iter().map(kind).collect();
    fields.insert("layer_types".into(), json!(types));
    if let Some(window) = keys.unsigned("attention.sliding_window")? {
        fields.insert("sliding_window".into(), json!(window));
    }
    Ok(())
}

/// What queries are scaled with the inverse square root of.
fn scalar(keys: &Keys<'_>, fields: &mut Fields, of_largest: u64) -> Result<(), GgufError> {
    let scalar = match keys.layers == of_largest {
        true => keys.size("embedding_length")? / keys.heads,
        false => keys.head_dim,
    };
    fields.insert("query_pre_attn_scalar".into(), json!(scalar));
    Ok(())
}
