//! Gemma 4 (31B, 26B-A4B, 12B, E4B, E2B): norms around every operation, heads of another width where a layer sees everything,
//! values with a norm, perhaps made of what makes keys, and beside the network perhaps a mixture. Layers of its smallest
//! models are given numbers of each token, and the last ones attend to keys and values of earlier ones.
//!
//! `Gemma4ForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use serde_json::Map;

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use super::mlx::is_of_mlx;
use super::small_gemma;
use super::wrapper::{AS_MLX_HAS_THEM, Wrapper};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::{
    Activation, AttentionSpec, Branch, ExpertsSpec, GateUp, Joined, LayerSpec, MlpSpec, Name,
    NormSpec, NormedSpec, Op, RouterNorm, RouterSpec,
};
use crate::model::whole::{LogitsSpec, ModelSpec};
use crate::model::window::{self, WindowRule};

/// The text model by itself.
pub(super) const TEXT: Family =
    Family { architecture: "Gemma4ForCausalLM", model_type: "gemma4_text", read: read_text };
pub(super) const FAMILY: Family =
    Family { architecture: "Gemma4ForConditionalGeneration", model_type: "gemma4", read };
/// The same text model beside another one of pictures.
pub(super) const UNIFIED: Family = Family {
    architecture: "Gemma4UnifiedForConditionalGeneration",
    model_type: "gemma4_unified",
    read: read_unified,
};

const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "model.",
    prefix: "model.language_model.",
    other_names: AS_MLX_HAS_THEM,
    defaults: Map::new,
    texts: &[("gemma4_text", read_text)],
    others: &[
        "model.vision_tower.",
        "model.embed_vision.",
        "model.vision_embedder.",
        "model.audio_tower.",
        "model.embed_audio.",
        "vision_tower.",
        "embed_vision.",
        "vision_embedder.",
        "audio_tower.",
        "embed_audio.",
    ],
    tied: true,
    fields: &[
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "image_token_id",
        "video_token_id",
        "vision_config",
        "vision_soft_tokens_per_image",
    ],
};

const ROTARY: Rotary = Rotary {
    theta: 1e6,
    window_theta: Some(WindowTheta { field: "rope_local_base_freq", default: 10_000.0 }),
    ..Rotary::PARTIAL
};
/// What a configuration has that does not say it.
#[derive(Clone, Copy)]
struct Defaults {
    /// Positions of a window.
    window: usize,
    /// Numbers that each layer is given of a token.
    given: usize,
}

const OF_TEXT: Defaults = Defaults { window: 512, given: 256 };
const OF_UNIFIED: Defaults = Defaults { window: 1024, given: 0 };
/// Width of heads without a window where a configuration does not say.
const FULL_HEAD_DIM: usize = 512;
const MIXTURE: Mixture = Mixture {
    count: &["num_experts"],
    chosen: "top_k_experts",
    prefix: "experts.",
    modules: ["", "", "down_proj"],
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    const MLX: Wrapper =
        Wrapper { texts: &[("gemma4_text", |fields| read_with(fields, OF_TEXT, true))], ..WRAPPER };
    if is_of_mlx(fields) { MLX.read(fields) } else { WRAPPER.read(fields) }
}

fn read_unified(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    const PLAIN: Wrapper = Wrapper {
        architecture: UNIFIED.architecture,
        texts: &[("gemma4_unified_text", |fields| read_with(fields, OF_UNIFIED, false))],
        ..WRAPPER
    };
    const MLX: Wrapper = Wrapper {
        texts: &[("gemma4_unified_text", |fields| read_with(fields, OF_UNIFIED, true))],
        ..PLAIN
    };
    if is_of_mlx(fields) { MLX.read(fields) } else { PLAIN.read(fields) }
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, OF_TEXT, is_of_mlx(fields))
}

/// `mlx`: whether the files are of MLX, which has gate and up of experts apart.
fn read_with(fields: &Fields<'_>, defaults: Defaults, mlx: bool) -> Result<ModelSpec, ConfigError> {
    if fields.object("rope_parameters")?.is_none() {
        // The reference has rotations of its own then, and passes what older files say by.
        return Err(ConfigError::Missing { field: "rope_parameters".to_owned() });
    }
    let (full_head_dim, full_kv_heads) = full_heads(fields)?;
    let rotary = Rotary { full_head_dim: Some(full_head_dim), ..ROTARY };
    let decoder = Decoder::read(fields, TEXT.architecture, rotary)?;
    let given = small_gemma::given(fields, &decoder, defaults.given)?;
    if let Some(given) = given.as_ref().filter(|given| given.rows < decoder.vocab_size) {
        return Err(decoder.unsupported("vocab_size_per_layer_input", &given.rows.to_string()));
    }
    let twice_as_wide = fields.flag("use_double_wide_mlp")?.unwrap_or(false);
    // Of pictures; text sees what was before it.
    decoder.only(fields, "use_bidirectional_attention", &["vision"])?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let shared = fields.flag("attention_k_eq_v")?.unwrap_or(false);
    let softcap = fields.optional_number("final_logit_softcapping", 0.0, limit::FACTOR)?;
    let mlp = decoder.mlp_with(fields, Activation::GeluTanh)?;
    let (second, wider) = networks(&decoder, fields, mlp, mlx)?;
    let rule = WindowRule::All { default: Some(defaults.window), but_each: Some(6) };
    let mut windows = window::read(fields, TEXT.architecture, rule, decoder.num_layers)?;
    if let Some(last) = windows.last_mut() {
        *last = None; // Whatever is said of it.
    }
    let keys_of = small_gemma::keys_of(fields, &decoder, &windows, 0)?;
    let width = given.as_ref().map(|given| given.width);
    let layer = |(window, keys_of): (Option<usize>, Option<usize>)| {
        let plain = decoder.attention();
        let (head_dim, kv_heads) = match window {
            Some(_) => (plain.head_dim, plain.kv_heads),
            None => (full_head_dim, full_kv_heads.filter(|_| shared).unwrap_or(plain.kv_heads)),
        };
        let norm = |path| NormSpec { width: head_dim, ..decoder.head_norm(path) };
        let keys = Name::Borrowed("self_attn.k_proj");
        let values = match shared && window.is_none() {
            true => keys.clone(), // What makes keys makes values, too.
            false => Name::Borrowed("self_attn.v_proj"),
        };
        let attention = AttentionSpec {
            head_dim,
            kv_heads,
            qkv: Joined::Separate([Name::Borrowed("self_attn.q_proj"), keys, values]),
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"].map(norm)),
            value_norm: Some(decoder.eps),
            scale: 1.0,
            window,
            rotation: Some(usize::from(window.is_some())),
            keys_of,
            ..plain
        };
        let attention = Branch::new(
            Some(decoder.norm("input_layernorm")),
            Op::Attention(attention),
            Some(decoder.norm("post_attention_layernorm")),
        );
        let scalar = Some(Name::Borrowed("layer_scalar"));
        let second = if twice_as_wide && keys_of.is_some() { &wider } else { &second };
        let given = width.map(|width| small_gemma::with_given(&decoder, width));
        let branches = [attention, second.clone()].into_iter().chain(given).collect();
        LayerSpec { scalar, ..LayerSpec::of(branches) }
    };
    let layers = windows.into_iter().zip(keys_of).map(layer).collect();
    let model = decoder.model(layers, true);
    let embedding_multiplier = (model.hidden_size as f64).sqrt() as f32;
    let logits = LogitsSpec { multiplier: 1.0, softcap: softcap.map(|softcap| softcap as f32) };
    Ok(ModelSpec { embedding_multiplier, given, logits, ..model })
}

/// Width and number of the heads of layers without a window: published files say both by themselves, newer versions of the
/// reference for each of these layers.
fn full_heads(fields: &Fields<'_>) -> Result<(usize, Option<usize>), ConfigError> {
    const EACH: &str = "per_layer_config";
    let by_itself = (
        fields.optional_size("global_head_dim", limit::HEAD_DIM)?.unwrap_or(FULL_HEAD_DIM),
        fields.optional_size("num_global_key_value_heads", limit::HEADS)?,
    );
    let Some(each) = fields.object(EACH)? else { return Ok(by_itself) };
    let Some(first) = each.values().next() else { return Ok(by_itself) };
    if each.values().any(|other| other != first) {
        let found = "with layers that differ".to_owned();
        let (field, architecture) = (EACH.to_owned(), TEXT.architecture);
        return Err(ConfigError::Unsupported { field, found, architecture });
    }
    let first = Fields::new(first).map_err(|error| error.inside(EACH))?;
    let found = (
        first.size("head_dim", limit::HEAD_DIM).map_err(|error| error.inside(EACH))?,
        first.optional_size("num_key_value_heads", limit::HEADS)?,
    );
    first.refuse_others(TEXT.architecture).map_err(|error| error.inside(EACH))?;
    Ok(found)
}

/// The second branch of a layer with this network, and of one with a network that is twice as wide inside.
fn networks(
    decoder: &Decoder,
    fields: &Fields<'_>,
    mlp: MlpSpec,
    mlx: bool,
) -> Result<(Branch, Branch), ConfigError> {
    let inner_size = mlp.inner_size.saturating_mul(2);
    let wider = network(decoder, fields, MlpSpec { inner_size, ..mlp.clone() }, mlx)?;
    Ok((network(decoder, fields, mlp, mlx)?, wider))
}

/// The second branch of a layer: a network, or the sum of one and of a mixture, each with norms of its own; what chooses
/// experts sees the hidden states themselves.
fn network(
    decoder: &Decoder,
    fields: &Fields<'_>,
    mlp: MlpSpec,
    mlx: bool,
) -> Result<Branch, ConfigError> {
    let norm = |path| Some(decoder.norm(path));
    let (before, after) = ("pre_feedforward_layernorm", norm("post_feedforward_layernorm"));
    if !fields.flag("enable_moe_block")?.unwrap_or(false) {
        fields.understand(&["num_experts", "top_k_experts", "moe_intermediate_size"]);
        let op = Op::Mlp(mlp);
        return Ok(Branch::new(norm(before), op, after));
    }
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let router = RouterSpec {
        norm: Some(RouterNorm {
            scale: Name::Borrowed("router.scale"),
            factor: (decoder.hidden_size as f64).powf(-0.5),
            eps: decoder.eps,
        }),
        expert_scale: Some(Name::Borrowed("router.per_expert_scale")),
        ..mixture::softmax("router.proj", true)
    };
    let experts = decoder.experts(fields, MIXTURE, &mlp, inner_size, router)?;
    let gate_up = GateUp::Gated(match mlx {
        false => Joined::Fused(Name::Borrowed("gate_up_proj")),
        true => Joined::Separate(["gate_proj", "up_proj"].map(Name::Borrowed)),
    });
    let experts = ExpertsSpec {
        norm: norm("pre_feedforward_layernorm_2"),
        expert: MlpSpec { gate_up, ..experts.expert },
        ..experts
    };
    let normed = |pre, op, post| {
        Op::Normed(Box::new(NormedSpec { pre, op, post: norm(post), multiplier: None }))
    };
    let op = Op::Sum(vec![
        normed(norm(before), Op::Mlp(mlp), "post_feedforward_layernorm_1"),
        normed(None, Op::Experts(experts), "post_feedforward_layernorm_2"),
    ]);
    Ok(Branch::new(None, op, after))
}
