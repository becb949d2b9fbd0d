//! Qwen3, dense: norms of queries and keys per head.

use super::decoder::Decoder;
use super::entry::Family;
use super::qwen::WINDOWS;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;
use crate::model::window;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3ForCausalLM", model_type: "qwen3", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    decoder.refuse(fields, &["mlp_bias"])?;
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let layer = |window| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            window,
            ..decoder.attention()
        };
        decoder.layer(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
