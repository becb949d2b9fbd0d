//! Kimi Linear: a delta rule that forgets by number on most layers, latent attention without positions on the others, and
//! experts on all but the first.
//!
//! `KimiLinearForCausalLM` in Hugging Face transformers.

use super::decoder::{Decoder, Reading};
use super::entry::Family;
use super::latent;
use super::mixture::{self, Mixture};
use super::mlx;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::latent::LatentSpec;
use crate::model::limit;
use crate::model::recurrent::{ConvolutionSpec, DeltaInputs, DeltaSpec};
use crate::model::spec::{
    Activation, CorrectionSpec, Name, NormSpec, Op, RouterGroups, RouterScores, RouterSpec,
};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "KimiLinearForCausalLM", model_type: "kimi_linear", read };

/// What the parts of a mixture are called.
struct Modules {
    mixture: Mixture,
    router: &'static str,
    correction: &'static str,
    shared: [&'static str; 3],
}

const OF_HUB: Modules = Modules {
    mixture: Mixture {
        count: &["num_experts"],
        chosen: "num_experts_per_token",
        ..Mixture::BLOCK_SPARSE
    },
    router: "block_sparse_moe.gate",
    correction: "block_sparse_moe.gate.e_score_correction_bias",
    shared: [
        "block_sparse_moe.shared_experts.gate_proj",
        "block_sparse_moe.shared_experts.up_proj",
        "block_sparse_moe.shared_experts.down_proj",
    ],
};
/// As mlx-lm has them (`KimiSparseMoE`).
const OF_MLX: Modules = Modules {
    mixture: Mixture { prefix: Mixture::USUAL.prefix, ..OF_HUB.mixture },
    router: "mlp.gate",
    correction: "mlp.e_score_correction_bias",
    shared: mixture::SHARED,
};
/// What the reference adds to a sum before it divides.
const LEAST_SUM: f32 = 1e-20;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let reading = Reading { positions: "model_max_length", ..Reading::USUAL };
    let decoder = Decoder::read_with(fields, FAMILY.architecture, latent::ROTARY, reading)?;
    decoder.require(fields, &["mla_use_nope", "use_grouped_topk"])?;
    decoder.only(fields, "moe_router_activation_func", &["sigmoid"])?;
    decoder.only(fields, "topk_method", &["noaux_tc"])?;
    if let Some(step) = fields.optional_size("moe_layer_freq", limit::LAYERS)?.filter(|it| *it != 1)
    {
        return Err(decoder.unsupported("moe_layer_freq", &step.to_string()));
    }
    fields.understand(&["head_dim", "max_position_embeddings"]); // The reference asks for neither.
    let plain = latent::attention(&decoder, fields)?;
    let attention = LatentSpec { rotation: None, ..plain };
    let (delta, attends) = linear(&decoder, fields)?;
    let mlp = decoder.mlp(fields)?;
    let sparse = mixture(&decoder, fields)?;
    let dense = fields.optional_whole("first_k_dense_replace", 0, limit::LAYERS)?.unwrap_or(1);
    let layer = |index: usize| {
        let first = match attends.contains(&(index + 1)) {
            true => Op::Latent(attention.clone()),
            false => Op::Delta(delta.clone()),
        };
        let second = if index < dense { Op::Mlp(mlp.clone()) } else { sparse.clone() };
        decoder.two_ops(first, second)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    let model = decoder.model(layers, false);
    let model = if mlx::is_of_mlx(fields) { mlx::with_taps_first(model) } else { model };
    Ok(ModelSpec { rotations: Vec::new(), ..model })
}

/// The delta rule, and the numbers of layers without it, counted from one.
fn linear(decoder: &Decoder, fields: &Fields<'_>) -> Result<(DeltaSpec, Vec<usize>), ConfigError> {
    const LINEAR: &str = "linear_attn_config";
    let missing = || ConfigError::Missing { field: LINEAR.to_owned() };
    let inside = fields.object(LINEAR)?.ok_or_else(missing)?;
    let within = |error: ConfigError| error.inside(LINEAR);
    let heads = inside.size("num_heads", limit::HEADS).map_err(within)?;
    let width = inside.size("head_dim", limit::HEAD_DIM).map_err(within)?;
    let taps = inside.optional_size("short_conv_kernel_size", limit::TAPS).map_err(within)?;
    let attends = inside.wholes("full_attn_layers", limit::LAYERS).map_err(within)?;
    let others = inside.wholes("kda_layers", limit::LAYERS).map_err(within)?;
    inside.refuse_others(FAMILY.architecture).map_err(within)?;
    if let Some(layer) =
        (1..=decoder.num_layers).find(|it| attends.contains(it) == others.contains(it))
    {
        let found = format!("layer {layer}, which is in both lists or in none");
        return Err(decoder.unsupported("linear_attn_config", &found));
    }
    let name = Name::Borrowed;
    let convolution = |weight| ConvolutionSpec {
        channels: heads.saturating_mul(width),
        taps: taps.unwrap_or(4),
        weight: name(weight),
        taps_first: false,
        bias: None,
    };
    let weights = match mlx::is_of_mlx(fields) {
        false => {
            ["self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"]
        }
        true => [
            "self_attn.q_conv.conv.weight",
            "self_attn.k_conv.conv.weight",
            "self_attn.v_conv.conv.weight",
        ],
    };
    let delta = DeltaSpec {
        hidden_size: decoder.hidden_size,
        key_heads: heads,
        value_heads: heads,
        key_dim: width,
        value_dim: width,
        inputs: DeltaInputs::Separate {
            qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(name),
            gate: ["self_attn.g_a_proj", "self_attn.g_b_proj"].map(name),
            correction: name("self_attn.b_proj"),
            decay: ["self_attn.f_a_proj", "self_attn.f_b_proj"].map(name),
        },
        convolutions: weights.map(convolution).into(),
        keys_in_turn: false,
        rate: name("self_attn.A_log"),
        negative_rate: false,
        bias: name("self_attn.dt_bias"),
        norm: NormSpec { width, ..decoder.norm("self_attn.o_norm") },
        gate: Activation::Sigmoid,
        output: name("self_attn.o_proj"),
    };
    Ok((delta, attends))
}

fn mixture(decoder: &Decoder, fields: &Fields<'_>) -> Result<Op, ConfigError> {
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let most = limit::EXPERTS_OF_LAYER;
    let count = fields.optional_size("num_expert_group", most)?.unwrap_or(1);
    let chosen = fields.optional_size("topk_group", count)?.unwrap_or(1);
    let multiplier = fields.optional_number("routed_scaling_factor", 0.0, limit::FACTOR)?;
    let Modules { mixture: names, router, correction, shared: modules } =
        if mlx::is_of_mlx(fields) { OF_MLX } else { OF_HUB };
    let correction = CorrectionSpec { name: Name::Borrowed(correction), axes: 1 };
    let renormalise = fields.flag("moe_renormalize")?.unwrap_or(true);
    let router = RouterSpec {
        scores: RouterScores::Sigmoid,
        correction: Some(correction),
        groups: (count > 1).then_some(RouterGroups { count, chosen }),
        renormalise: renormalise.then_some(LEAST_SUM),
        multiplier: multiplier.unwrap_or(1.0) as f32,
        ..mixture::softmax(router, renormalise)
    };
    let mlp = decoder.mlp_of(fields, Activation::Silu, inner_size)?;
    let experts = decoder.experts(fields, names, &mlp, inner_size, router)?;
    let shared = fields.optional_whole("num_shared_experts", 0, most)?.unwrap_or(0);
    Ok(mixture::with_shared(experts, &mlp, modules, inner_size.saturating_mul(shared)))
}
