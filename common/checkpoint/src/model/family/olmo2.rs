//! OLMo 2: norms after operations instead of before, and norms of queries and keys over all heads at once.
//!
//! `Olmo2ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Olmo2ForCausalLM", model_type: "olmo2", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp = decoder.mlp(fields)?;
    let norms = decoder.whole_norms(["self_attn.q_norm", "self_attn.k_norm"]);
    let layer = |_| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            ..decoder.attention()
        };
        decoder.post_norm(attention, &mlp)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
