//! Laguna: windows on most layers, which have more heads than the others, gates of heads, and experts beside a network.
//!
//! `LagunaForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use super::mlx;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, shown};
use crate::model::limit;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::{AttentionSpec, Name, Op, OutputGate, RouterSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "LagunaForCausalLM", model_type: "laguna", read };

const ROTARY: Rotary = Rotary {
    theta: 5e5,
    window_theta: Some(WindowTheta { field: "rope_local_base_freq", default: 10_000.0 }),
    ..Rotary::PARTIAL
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    if fields.object("rope_parameters")?.is_none() {
        // The reference has rotations of its own then, and passes what older files say by.
        return Err(ConfigError::Missing { field: "rope_parameters".to_owned() });
    }
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.refuse(fields, &["moe_apply_router_weight_on_input"])?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let gate = gate(&decoder, fields)?;
    let windows = window::read(
        fields,
        FAMILY.architecture,
        WindowRule::All { default: Some(512), but_each: None },
        decoder.num_layers,
    )?;
    let heads = heads(&decoder, fields)?;
    let mlp = decoder.mlp(fields)?;
    let sparse = mixture(&decoder, fields)?;
    let is_sparse = mixture::sparse_layers(&decoder, fields, 1)?;
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|it| decoder.head_norm(it));
    let layer = |index: usize| {
        let attention = AttentionSpec {
            heads: heads[index],
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            output_gate: Some(gate.clone()),
            window: windows[index],
            rotation: Some(usize::from(windows[index].is_some())),
            ..decoder.attention()
        };
        let op = if is_sparse[index] { sparse.clone() } else { Op::Mlp(mlp.clone()) };
        decoder.pre_norm(attention, op)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}

/// The gates of heads, or of each of their numbers.
fn gate(decoder: &Decoder, fields: &Fields<'_>) -> Result<OutputGate, ConfigError> {
    let each_number = match fields.get("gating") {
        None => false,
        Some(value) => match (value.as_bool(), value.as_str()) {
            (Some(true), _) | (_, Some("per-head")) => false,
            (_, Some("per-element")) => true,
            _ => return Err(decoder.unsupported("gating", &shown(value))),
        },
    };
    Ok(OutputGate::Softplus { module: Name::Borrowed("self_attn.g_proj"), each_number })
}

/// How many heads of queries each layer has.
fn heads(decoder: &Decoder, fields: &Fields<'_>) -> Result<Vec<usize>, ConfigError> {
    const LIST: &str = "num_attention_heads_per_layer";
    if fields.get(LIST).is_none() {
        return Ok(vec![decoder.heads; decoder.num_layers]);
    }
    let heads = fields.wholes(LIST, limit::HEADS)?;
    if heads.len() != decoder.num_layers {
        return Err(decoder.unsupported(LIST, &format!("{} layers", heads.len())));
    }
    match heads.iter().find(|heads| **heads == 0 || **heads % decoder.kv_heads != 0) {
        None => Ok(heads),
        Some(&heads) => Err(ConfigError::HeadsNotDivisible { heads, kv_heads: decoder.kv_heads }),
    }
}

fn mixture(decoder: &Decoder, fields: &Fields<'_>) -> Result<Op, ConfigError> {
    if let Some(cap) =
        fields.optional_number("moe_router_logit_softcapping", -1.0, limit::FACTOR)?
        && cap != 0.0
    {
        return Err(decoder.unsupported("moe_router_logit_softcapping", &cap.to_string()));
    }
    let multiplier = fields.optional_number("moe_routed_scaling_factor", 0.0, limit::FACTOR)?;
    let router = RouterSpec {
        multiplier: multiplier.unwrap_or(1.0) as f32,
        ..match mlx::is_of_mlx(fields) {
            false => mixture::sigmoid("mlp.gate", "mlp.experts.e_score_correction_bias"),
            true => mixture::sigmoid("mlp.gate.proj", "mlp.gate.e_score_correction_bias"),
        }
    };
    let mlp = decoder.mlp(fields)?;
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let shared = fields.size("shared_expert_intermediate_size", limit::INNER)?;
    let experts = decoder.experts(fields, Mixture::USUAL, &mlp, inner_size, router)?;
    Ok(mixture::with_shared(experts, &mlp, mixture::SHARED_EXPERT, shared))
}
