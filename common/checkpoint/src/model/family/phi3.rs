//! Phi-3 and Phi-4: fused projections, and a part of each head that does not rotate.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, GateUp, Joined, MlpSpec, Name};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Phi3ForCausalLM", model_type: "phi3", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::PARTIAL)?;
    decoder.refuse(fields, &["attention_bias", "mlp_bias", "lm_head_bias"])?;
    for field in ["full_attn_mod", "interpolate_factor"] {
        fields.optional_whole(field, 1, 1)?; // Nothing the reference reads; published files have 1.
    }
    let gate_up = GateUp::Gated(Joined::Fused(Name::Borrowed("mlp.gate_up_proj")));
    let mlp = MlpSpec { gate_up, ..decoder.mlp(fields)? };
    let rule = WindowRule::All { default: None, but_each: None };
    let windows = window::read(fields, FAMILY.architecture, rule, decoder.num_layers)?;
    let layer = |window| {
        let qkv = Joined::Fused(Name::Borrowed("self_attn.qkv_proj"));
        decoder.layer(AttentionSpec { qkv, window, ..decoder.attention() }, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
