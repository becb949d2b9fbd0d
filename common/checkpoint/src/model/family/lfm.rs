//! What LFM2's families share, with experts and without: gated short convolutions on most layers, attention on the others.

use super::decoder::{Decoder, Reading};
use super::{hybrid, mlx};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::recurrent::{ConvolutionSpec, ShortConvolutionSpec};
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, GateUp, Joined, LayerSpec, MlpSpec, Name, Op};
use crate::model::whole::ModelSpec;

const ROTARY: Rotary = Rotary { theta: 1e6, ..Rotary::FULL };

/// Reads the sizes of this family and of the one with experts.
pub(super) fn decoder(
    fields: &Fields<'_>,
    architecture: &'static str,
) -> Result<Decoder, ConfigError> {
    let reading = Reading { eps: "norm_eps", ..Reading::USUAL };
    // What older files say once more, or of what is always so.
    fields.understand(&[
        "block_dim",
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "num_heads",
        "theta",
        "use_pos_enc",
    ]);
    Decoder::read_with(fields, architecture, ROTARY, reading)
}

/// A network of this width inside.
pub(super) fn network(
    decoder: &Decoder,
    fields: &Fields<'_>,
    inner_size: usize,
) -> Result<MlpSpec, ConfigError> {
    Ok(MlpSpec {
        gate_up: GateUp::Gated(Joined::Separate(
            ["feed_forward.w1", "feed_forward.w3"].map(Name::Borrowed),
        )),
        down: Name::Borrowed("feed_forward.w2"),
        ..decoder.mlp_of(fields, Activation::Silu, inner_size)?
    })
}

/// The model whose layers have, after convolution or attention, what `second` says.
pub(super) fn model(
    decoder: Decoder,
    fields: &Fields<'_>,
    second: impl Fn(usize) -> Op,
) -> Result<ModelSpec, ConfigError> {
    let bias = fields.flag("conv_bias")?.unwrap_or(false);
    let convolution = ShortConvolutionSpec {
        hidden_size: decoder.hidden_size,
        input: Name::Borrowed("conv.in_proj"),
        convolution: ConvolutionSpec {
            channels: decoder.hidden_size,
            taps: fields.optional_size("conv_L_cache", limit::TAPS)?.unwrap_or(3),
            weight: Name::Borrowed("conv.conv.weight"),
            taps_first: false,
            bias: bias.then_some(Name::Borrowed("conv.conv.bias")),
        },
        output: Name::Borrowed("conv.out_proj"),
        bias,
    };
    let attention = AttentionSpec {
        output: Name::Borrowed("self_attn.out_proj"),
        qk_norm: Some(
            ["self_attn.q_layernorm", "self_attn.k_layernorm"].map(|it| decoder.head_norm(it)),
        ),
        ..decoder.attention()
    };
    let indices = fields.wholes("full_attn_idxs", limit::LAYERS)?;
    let all_attend = fields.get("full_attn_idxs").is_none();
    let words = [("conv", false), ("full_attention", true)];
    let attends = |layer| all_attend || indices.contains(&layer);
    let attends = hybrid::kinds(&decoder, fields, &words, attends)?;
    let layer = |(index, attends): (usize, bool)| {
        let first = match attends {
            true => Op::Attention(attention.clone()),
            false => Op::ShortConvolution(convolution.clone()),
        };
        LayerSpec::pre_norm([
            (decoder.norm("operator_norm"), first),
            (decoder.norm("ffn_norm"), second(index)),
        ])
    };
    let layers = attends.into_iter().enumerate().map(layer).collect();
    let final_norm = decoder.norm("model.embedding_norm");
    let model = decoder.model(layers, true);
    let tied = fields.flag("tie_embedding")?.unwrap_or(model.tie_word_embeddings);
    let model = ModelSpec { final_norm, tie_word_embeddings: tied, ..model };
    Ok(if mlx::is_of_mlx(fields) { mlx::with_taps_first(model) } else { model })
}
