//! Granite 4: Mamba 2 on most layers, attention on the others, and on all a network, perhaps beside experts; with Granite's
//! multipliers.
//!
//! `GraniteMoeHybridForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use super::multipliers::{Multipliers, multipliers};
use super::{hybrid, mlx, state_space};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, GateUp, Joined, MlpSpec, Name, Op};
use crate::model::whole::{LogitsSpec, ModelSpec};

pub(super) const FAMILY: Family =
    Family { architecture: "GraniteMoeHybridForCausalLM", model_type: "granitemoehybrid", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let Multipliers { embedding, scale, residual, divisor } = multipliers(fields)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    decoder.only(fields, "position_embedding_type", &["nope", "rope"])?;
    let rotation = (fields.text("position_embedding_type")? == Some("rope")).then_some(0);
    let words = [
        ("mamba", false),
        ("linear_attention", false),
        ("attention", true),
        ("full_attention", true),
    ];
    let attends = hybrid::kinds(&decoder, fields, &words, |_| false)?;
    // Sizes of state spaces may be missing where there are none.
    let mamba = match attends.iter().all(|attends| *attends) {
        true => None,
        false => Some(state_space::read(&decoder, fields, None)?),
    };
    fields.understand(&[
        "mamba_conv_bias",
        "mamba_d_conv",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_expand",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_proj_bias",
        "mamba_chunk_size",
        "init_method",
        "normalization_function",
    ]);
    if mamba.is_none() {
        state_space::understand_steps(&decoder, fields)?;
    }
    let plain = decoder.attention();
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, scale, rotation, ..plain };
    let second = second(&decoder, fields)?;
    let layer = |attends| {
        let first = match (attends, &mamba) {
            (false, Some(mamba)) => Op::Mamba(mamba.clone()),
            _ => Op::Attention(attention.clone()),
        };
        let mut layer = decoder.two_ops(first, second.clone());
        layer.branches.iter_mut().for_each(|branch| branch.multiplier = residual as f32);
        layer
    };
    let layers = attends.into_iter().map(layer).collect();
    let model = decoder.model(layers, false);
    let logits = LogitsSpec { multiplier: (1.0 / divisor) as f32, softcap: None };
    let model = if mlx::is_of_mlx(fields) { mlx::with_taps_first(model) } else { model };
    Ok(ModelSpec { embedding_multiplier: embedding as f32, logits, ..model })
}

/// The network of every layer, and the experts beside it, if there are such.
fn second(decoder: &Decoder, fields: &Fields<'_>) -> Result<Op, ConfigError> {
    let shared = fields.size("shared_intermediate_size", limit::INNER)?;
    let apart = decoder.mlp_of(fields, Activation::Silu, shared)?;
    let shared = MlpSpec {
        gate_up: GateUp::Gated(Joined::Fused(Name::Borrowed("shared_mlp.input_linear"))),
        down: Name::Borrowed("shared_mlp.output_linear"),
        ..apart.clone()
    };
    if fields.optional_whole("num_local_experts", 0, limit::EXPERTS_OF_LAYER)? == Some(0) {
        fields.understand(&["num_experts_per_tok"]);
        return Ok(Op::Mlp(if mlx::is_of_mlx(fields) { apart } else { shared }));
    }
    let mlp = decoder.mlp(fields)?;
    let inner_size = mlp.inner_size;
    let router = mixture::softmax("block_sparse_moe.router.layer", true);
    let experts = decoder.experts(fields, Mixture::GRANITE, &mlp, inner_size, router)?;
    Ok(Op::Sum(vec![Op::Experts(experts), Op::Mlp(shared)]))
}
