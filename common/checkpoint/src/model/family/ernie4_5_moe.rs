//! ERNIE 4.5 with experts: the dense family's attention; on some layers a mixture with a network beside it.
//!
//! `Ernie4_5_MoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture, SHARED};
use super::mlx::is_of_mlx;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::rotation::RotaryPairs;
use crate::model::spec::{CorrectionSpec, Name, Op, RouterSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Ernie4_5_MoeForCausalLM", model_type: "ernie4_5_moe", read };

const ROTARY: Rotary = Rotary { theta: 5e5, pairs: RotaryPairs::Neighbours, ..Rotary::FULL };
const EXPERTS: Mixture = Mixture { count: &["moe_num_experts"], chosen: "moe_k", ..Mixture::USUAL };
const CORRECTION: CorrectionSpec =
    CorrectionSpec { name: Name::Borrowed("mlp.moe_statics.e_score_correction_bias"), axes: 2 };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.refuse(fields, &["use_bias"])?; // Its head would have one, too.
    decoder.only(fields, "moe_gate", &["topk", "topk_fused"])?;
    decoder.only(fields, "moe_gate_act", &["softmax"])?;
    decoder.require(fields, &["moe_use_aux_free"])?; // That is the correction.
    fields.understand(&["moe_capacity"]); // Of training: nothing is left out here.
    let mlp = decoder.mlp(fields)?;
    let least = fields.optional_number("moe_norm_min", 0.0, 1.0)?.unwrap_or(1e-12);
    let router = RouterSpec {
        correction: (!is_of_mlx(fields)).then_some(CORRECTION), // MLX's files have none any more.
        renormalise: Some(least as f32),
        ..mixture::softmax("mlp.gate", true)
    };
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let experts = decoder.experts(fields, EXPERTS, &mlp, inner_size, router)?;
    let most = limit::EXPERTS_OF_LAYER;
    let shared = fields.optional_whole("moe_num_shared_experts", 0, most)?.unwrap_or(2);
    let shared_size = inner_size.saturating_mul(shared);
    let sparse = mixture::with_shared(experts, &mlp, SHARED, shared_size);
    let first = fields.optional_whole("moe_layer_start_index", 0, limit::LAYERS)?.unwrap_or(1);
    let step = fields.optional_size("moe_layer_interval", limit::LAYERS)?.unwrap_or(1);
    let last = match fields.get("moe_layer_end_index") {
        Some(end) if *end == -1 => limit::LAYERS,
        _ => {
            let last = fields.optional_whole("moe_layer_end_index", 0, limit::LAYERS)?;
            last.unwrap_or(limit::LAYERS)
        }
    };
    let layer = |index: usize| {
        let is_sparse = (index + 1).is_multiple_of(step) && (first..=last).contains(&index);
        let op = if is_sparse { sparse.clone() } else { Op::Mlp(mlp.clone()) };
        decoder.pre_norm(decoder.attention(), op)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, true))
}
