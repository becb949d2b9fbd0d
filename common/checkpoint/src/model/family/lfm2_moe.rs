//! LFM2 with experts (8B-A1B, 24B-A2B): its layers, but for the first ones with a mixture.
//!
//! `Lfm2MoeForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::mixture::{self, Mixture};
use super::{lfm, mlx};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::spec::{GateUp, Joined, MlpSpec, Name, Op, RouterSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Lfm2MoeForCausalLM", model_type: "lfm2_moe", read };

const MIXTURE: Mixture = Mixture {
    count: &["num_experts"],
    prefix: "feed_forward.experts.",
    modules: ["w1", "w3", "w2"],
    ..Mixture::USUAL
};
/// What the reference adds to a sum before it divides.
const LEAST_SUM: f32 = 1e-6;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = lfm::decoder(fields, FAMILY.architecture)?;
    // Of the family without experts, whose widths are adjusted.
    fields.understand(&[
        "block_auto_adjust_ff_dim",
        "block_ff_dim",
        "block_ffn_dim_multiplier",
        "block_multiple_of",
    ]);
    let mlp = lfm::network(&decoder, fields, decoder.inner_size()?)?;
    // MLX calls those of the first layers as it does experts.
    let names = ["gate_proj", "up_proj", "down_proj"].map(|it| format!("feed_forward.{it}"));
    let [gate, up, down] = names.map(Name::Owned);
    let dense_mlp = match mlx::is_of_mlx(fields) {
        true => {
            MlpSpec { gate_up: GateUp::Gated(Joined::Separate([gate, up])), down, ..mlp.clone() }
        }
        false => mlp.clone(),
    };
    let plain = mixture::sigmoid("feed_forward.gate", "feed_forward.expert_bias");
    let multiplier = fields.optional_number("routed_scaling_factor", 0.0, limit::FACTOR)?;
    let corrects = fields.flag("use_expert_bias")?.unwrap_or(true);
    let renormalises = fields.flag("norm_topk_prob")?.unwrap_or(true);
    let router = RouterSpec {
        correction: plain.correction.clone().filter(|_| corrects),
        renormalise: renormalises.then_some(LEAST_SUM),
        multiplier: multiplier.unwrap_or(1.0) as f32,
        ..plain
    };
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let experts = decoder.experts(fields, MIXTURE, &mlp, inner_size, router)?;
    let dense = fields.optional_whole("num_dense_layers", 0, limit::LAYERS)?.unwrap_or(2);
    lfm::model(decoder, fields, |layer| match layer < dense {
        true => Op::Mlp(dense_mlp.clone()),
        false => Op::Experts(experts.clone()),
    })
}
