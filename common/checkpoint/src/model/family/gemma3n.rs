//! Gemma 3n (E2B, E4B): several streams of hidden states of which a layer computes with one, a residual of few numbers beside
//! attention, gates of which only the largest count, numbers that each layer is given of a token, and layers at the end that
//! attend to keys and values of earlier ones.
//!
//! `Gemma3nForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use serde_json::Map;

use super::decoder::{Decoder, Reading};
use super::entry::Family;
use super::small_gemma;
use super::wrapper::{AS_MLX_HAS_THEM, Wrapper};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::{
    Activation, AttentionSpec, Branch, LayerSpec, LowRankSpec, MlpSpec, Name, NormedSpec, Op,
};
use crate::model::streams::{LayerStreamsSpec, StreamsSpec};
use crate::model::whole::{LogitsSpec, ModelSpec};
use crate::model::window::{self, WindowRule};

/// The text model by itself.
pub(super) const TEXT: Family =
    Family { architecture: "Gemma3nForCausalLM", model_type: "gemma3n_text", read: read_text };
pub(super) const FAMILY: Family =
    Family { architecture: "Gemma3nForConditionalGeneration", model_type: "gemma3n", read };

const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "model.",
    prefix: "model.language_model.",
    other_names: AS_MLX_HAS_THEM,
    defaults: Map::new,
    texts: &[("gemma3n_text", read_text)],
    others: &[
        "model.vision_tower.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.embed_audio.",
        "vision_tower.",
        "embed_vision.",
        "audio_tower.",
        "embed_audio.",
    ],
    tied: true,
    fields: &[
        "audio_config",
        "audio_soft_tokens_per_image",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "eoa_token_id",
        "eoi_token_id",
        "image_token_id",
        "vision_config",
        "vision_soft_tokens_per_image",
    ],
};

const WINDOW_THETA: WindowTheta = WindowTheta { field: "rope_local_base_freq", default: 1e4 };
const ROTARY: Rotary = Rotary { theta: 1e6, window_theta: Some(WINDOW_THETA), ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: Some(512), but_each: Some(5) };
/// Networks may have a width each.
const READING: Reading = Reading { has_inner_size: false, ..Reading::USUAL };
/// What a configuration has that does not say it: numbers that a layer is given,
const GIVEN: usize = 256;
/// layers that attend to keys of earlier ones,
const SHARED: usize = 15;
/// streams,
const STREAMS: usize = 4;
/// numbers of the small residual,
const RANK: usize = 64;
/// what bounds logits,
const SOFTCAP: f64 = 30.0;
/// and, where a model has more than so many layers, how many of the first have so large a part of gates without effect.
const SPARSE: (usize, f64) = (10, 0.95);
/// The largest such part: a bound some 3.7 standard deviations above the mean.
const MOST_SPARSE: f64 = 0.9999;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    WRAPPER.read(fields)
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read_with(fields, TEXT.architecture, ROTARY, READING)?;
    let given = small_gemma::given(fields, &decoder, GIVEN)?;
    let Some(given) = given else {
        // The reference has no layer without.
        return Err(decoder.unsupported("hidden_size_per_layer_input", "0"));
    };
    // Of training, or of other programs: the reference reads none of them where it answers.
    fields.understand(&["altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"]);
    decoder.require(fields, &["altup_correct_scale"])?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let count = fields.optional_whole("altup_num_inputs", 2, limit::STREAMS)?.unwrap_or(STREAMS);
    let active = fields.optional_whole("altup_active_idx", 0, count - 1)?.unwrap_or(0);
    let rank = fields.optional_size("laurel_rank", limit::HIDDEN)?.unwrap_or(RANK);
    let softcap = match fields.has("final_logit_softcapping") {
        true => fields.optional_number("final_logit_softcapping", 0.0, limit::FACTOR)?,
        false => Some(SOFTCAP),
    };
    let inner_sizes = inner_sizes(fields, decoder.num_layers)?;
    let sparse = sparse(fields, decoder.num_layers)?;
    let windows = window::read(fields, TEXT.architecture, WINDOWS, decoder.num_layers)?;
    let keys_of = small_gemma::keys_of(fields, &decoder, &windows, SHARED)?;
    let norm = |path| Some(decoder.norm(path));
    let streams = LayerStreamsSpec {
        count,
        active,
        norm: decoder.norm("altup.router_norm"),
        router_multiplier: (decoder.hidden_size as f64).recip() as f32,
        router: Name::Borrowed("altup.modality_router"),
        prediction: Name::Borrowed("altup.prediction_coefs"),
        correction: Name::Borrowed("altup.correction_coefs"),
        scale: Name::Borrowed("altup.correct_output_scale"),
    };
    let residual = LowRankSpec {
        hidden_size: decoder.hidden_size,
        rank,
        first: Name::Borrowed("laurel.linear_left"),
        second: Name::Borrowed("laurel.linear_right"),
        norm: decoder.norm("laurel.post_laurel_norm"),
    };
    let half = 0.5_f64.sqrt() as f32;
    let layer = |layer: usize| {
        let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms),
            value_norm: Some(decoder.eps),
            scale: 1.0,
            window: windows[layer],
            rotation: Some(usize::from(windows[layer].is_some())),
            keys_of: keys_of[layer],
            ..decoder.attention()
        };
        let attention = Op::Normed(Box::new(NormedSpec {
            pre: None,
            op: Op::Attention(attention),
            post: norm("post_attention_layernorm"),
            multiplier: None,
        }));
        let both = Op::Sum(vec![attention, Op::LowRank(residual.clone())]);
        let mlp = decoder.mlp_of(fields, Activation::GeluTanh, inner_sizes[layer])?;
        let mlp = MlpSpec { gate_cutoff: sparse[layer], ..mlp };
        let (before, after) = ("pre_feedforward_layernorm", "post_feedforward_layernorm");
        let branches = vec![
            Branch {
                multiplier: half,
                residual: Some(half),
                ..Branch::new(norm("input_layernorm"), both, None)
            },
            Branch::new(norm(before), Op::Mlp(mlp), norm(after)),
        ];
        let others = Some(small_gemma::with_given(&decoder, given.width));
        Ok(LayerSpec { streams: Some(streams.clone()), others, ..LayerSpec::of(branches) })
    };
    let layers = (0..decoder.num_layers).map(layer).collect::<Result<_, ConfigError>>()?;
    let model = decoder.model(layers, true);
    let modules = |name: &str| {
        (1..count).map(|index| Name::Owned(format!("model.{name}.{}", index - 1))).collect()
    };
    let streams = StreamsSpec {
        begin: modules("altup_projections"),
        end: modules("altup_unembed_projections"),
    };
    let embedding_multiplier = (model.hidden_size as f64).sqrt() as f32;
    let logits = LogitsSpec { multiplier: 1.0, softcap: softcap.map(|softcap| softcap as f32) };
    let (given, streams) = (Some(given), Some(streams));
    Ok(ModelSpec { embedding_multiplier, given, streams, logits, ..model })
}

/// The width of each layer's network: one for all, or a list.
fn inner_sizes(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<usize>, ConfigError> {
    const FIELD: &str = "intermediate_size";
    let Some(value) = fields.get(FIELD).filter(|value| value.is_array()) else {
        return Ok(vec![fields.size(FIELD, limit::INNER)?; num_layers]);
    };
    let sizes = fields.wholes(FIELD, limit::INNER)?;
    match sizes.len() == num_layers && !sizes.contains(&0) {
        true => Ok(sizes),
        false => Err(wrong(FIELD, "a width for each layer", value)),
    }
}

/// Where the bound of each layer's gates is, if they have one: as many standard deviations above the mean as, of numbers that
/// are normally distributed, the given part is below.
fn sparse(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<Option<f32>>, ConfigError> {
    const FIELD: &str = "activation_sparsity_pattern";
    let (first, part) = SPARSE;
    let bound = |part: f64| (part > 0.0).then(|| deviations(part) as f32);
    let Some(value) = fields.get(FIELD) else {
        let is_sparse = |layer: usize| num_layers > first && layer < first;
        let of_layer = |layer| bound(if is_sparse(layer) { part } else { 0.0 });
        return Ok((0..num_layers).map(of_layer).collect());
    };
    let refused = || wrong(FIELD, "a number from 0 to 0.9999 for each layer", value);
    let parts = value.as_array().filter(|parts| parts.len() == num_layers).ok_or_else(refused)?;
    let of_layer = |part: &serde_json::Value| {
        let part = part.as_f64().filter(|part| (0.0..=MOST_SPARSE).contains(part));
        part.map(bound).ok_or_else(refused)
    };
    parts.iter().map(of_layer).collect()
}

/// How many standard deviations above the mean of a normal distribution so large a part of it is below; `part` is above 0 and
/// at most [`MOST_SPARSE`].
fn deviations(part: f64) -> f64 {
    // Φ(x) = 1/2 + φ(x) · (x + x³/3 + x⁵/(3·5) + …), of which all terms have one sign.
    let below = |x: f64| {
        let (mut term, mut sum, mut divisor) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            divisor += 2.0;
            term *= x * x / divisor;
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if below(middle) < part { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_normal_distribution_end_where_tables_say() {
        for (part, expected) in
            [(0.95, 1.644_853_627), (0.5, 0.0), (0.1, -1.281_551_566), (0.9999, 3.719_016_485)]
        {
            assert!((deviations(part) - expected).abs() < 1e-8, "{part}: {}", deviations(part));
        }
        assert!(deviations(1e-300) >= -6.0);
    }
}
