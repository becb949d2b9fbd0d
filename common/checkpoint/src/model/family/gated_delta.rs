//! What Qwen3-Next and the families after it share: a gated delta rule on most layers, gated attention on the others, norms
//! that are stored as what they differ from one, and their experts.

use super::decoder::Decoder;
use super::mixture::{self, Mixture};
use super::{hybrid, mlx};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::recurrent::{ConvolutionSpec, DeltaInputs, DeltaSpec};
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, MlpSpec, Name, NormSpec, Op, OutputGate};
use crate::model::whole::ModelSpec;

/// Reads the sizes. MLX has norms whole.
pub(super) fn decoder(
    fields: &Fields<'_>,
    architecture: &'static str,
    rotary: Rotary,
    mlx: bool,
) -> Result<Decoder, ConfigError> {
    let mut decoder = Decoder::read(fields, architecture, rotary)?;
    decoder.norm_offset = if mlx { 0.0 } else { 1.0 };
    Ok(decoder)
}

/// Experts, and beside them a network whose part the row decides.
pub(super) fn mixture(
    decoder: &Decoder,
    fields: &Fields<'_>,
    renormalise: bool,
) -> Result<Op, ConfigError> {
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let shared_size = fields.size("shared_expert_intermediate_size", limit::INNER)?;
    let mlp = decoder.mlp_of(fields, Activation::Silu, inner_size)?;
    let router = mixture::softmax("mlp.gate", renormalise);
    let experts = decoder.experts(fields, Mixture::USUAL, &mlp, inner_size, router)?;
    let output_gate = Some(Name::Borrowed("mlp.shared_expert_gate"));
    let gated = MlpSpec { output_gate, ..mlp };
    Ok(mixture::with_shared(experts, &gated, mixture::SHARED_EXPERT, shared_size))
}

/// The model whose layers have, after a delta rule or attention, what `second` says.
pub(super) fn model(
    decoder: Decoder,
    fields: &Fields<'_>,
    inputs: DeltaInputs,
    mlx: bool,
    second: impl Fn(usize) -> Op,
) -> Result<ModelSpec, ConfigError> {
    let each = fields.optional_size("full_attention_interval", limit::LAYERS)?.unwrap_or(4);
    let words = [("linear_attention", false), ("full_attention", true)];
    let attends = |layer: usize| (layer + 1).is_multiple_of(each);
    let attends = hybrid::kinds(&decoder, fields, &words, attends)?;
    let delta = delta(&decoder, fields, inputs)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"].map(|it| decoder.head_norm(it))),
        output_gate: Some(OutputGate::WithQueries),
        ..decoder.attention()
    };
    let layer = |(index, attends): (usize, bool)| {
        let first = match attends {
            true => Op::Attention(attention.clone()),
            false => Op::Delta(delta.clone()),
        };
        decoder.two_ops(first, second(index))
    };
    let layers = attends.into_iter().enumerate().map(layer).collect();
    let model = decoder.model(layers, false);
    Ok(if mlx { mlx::with_taps_first(model) } else { model })
}

fn delta(
    decoder: &Decoder,
    fields: &Fields<'_>,
    inputs: DeltaInputs,
) -> Result<DeltaSpec, ConfigError> {
    let size = |field, most, default| {
        Ok::<_, ConfigError>(fields.optional_size(field, most)?.unwrap_or(default))
    };
    let key_heads = size("linear_num_key_heads", limit::HEADS, 16)?;
    let value_heads = size("linear_num_value_heads", limit::HEADS, 32)?;
    if value_heads % key_heads != 0 {
        return Err(decoder.unsupported("linear_num_value_heads", &value_heads.to_string()));
    }
    let key_dim = size("linear_key_head_dim", limit::HEAD_DIM, 128)?;
    let value_dim = size("linear_value_head_dim", limit::HEAD_DIM, 128)?;
    let convolution = ConvolutionSpec {
        channels: 2 * key_heads * key_dim + value_heads * value_dim,
        taps: size("linear_conv_kernel_dim", limit::TAPS, 4)?,
        weight: Name::Borrowed("linear_attn.conv1d.weight"),
        taps_first: false,
        bias: None,
    };
    let norm = decoder.norm("linear_attn.norm");
    Ok(DeltaSpec {
        hidden_size: decoder.hidden_size,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        inputs,
        convolutions: vec![convolution],
        keys_in_turn: false,
        rate: Name::Borrowed("linear_attn.A_log"),
        negative_rate: false,
        bias: Name::Borrowed("linear_attn.dt_bias"),
        norm: NormSpec { width: value_dim, offset: 0.0, ..norm },
        gate: Activation::Silu,
        output: Name::Borrowed("linear_attn.out_proj"),
    })
}
