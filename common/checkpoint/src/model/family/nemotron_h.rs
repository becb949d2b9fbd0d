//! Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers of a single mixer each, which is Mamba 2, attention, a network or experts.
//!
//! `NemotronHForCausalLM` in Hugging Face transformers.

use super::decoder::{Decoder, Reading};
use super::entry::Family;
use super::mixture::{self, Mixture, Routed};
use super::mlx;
use super::state_space::{self, Modules, Sizes};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::recurrent::MambaSpec;
use crate::model::rope::Rotary;
use crate::model::spec::{
    Activation, AttentionSpec, CorrectionSpec, ExpertProjectionsSpec, ExpertsSpec, GateUp, Joined,
    LayerSpec, MlpSpec, Name, Op, RouterSpec,
};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "NemotronHForCausalLM", model_type: "nemotron_h", read };

const MODULES: Modules = Modules {
    input: "mixer.in_proj",
    convolution: "mixer.conv1d.weight",
    convolution_bias: "mixer.conv1d.bias",
    rate: "mixer.A_log",
    bias: "mixer.dt_bias",
    skip: "mixer.D",
    norm: "mixer.norm",
    output: "mixer.out_proj",
};
const MIXTURE: Mixture = Mixture {
    count: &["n_routed_experts"],
    prefix: "mixer.experts.",
    modules: ["", "up_proj", "down_proj"],
    ..Mixture::USUAL
};
/// Width of a head of attention where that is not said.
const HEAD_DIM: usize = 128;
const ROUTED: Routed = Routed { shared: 1, renormalise: true, groups: (1, 1), multiplier: 1.0 };

/// What a layer is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Experts,
    Network,
}

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let kinds = kinds(fields)?;
    let num_layers = Some(kinds.len());
    let reading = Reading { eps: "layer_norm_epsilon", num_layers, ..Reading::USUAL };
    // Rotations are said, and there are none.
    let mut decoder = Decoder::read_with(fields, FAMILY.architecture, Rotary::PARTIAL, reading)?;
    let of_older = fields.optional_size("attention_head_dim", limit::HEAD_DIM)?;
    if fields.get("head_dim").is_none() {
        decoder.head_dim = of_older.unwrap_or(HEAD_DIM);
    }
    if decoder.num_layers != kinds.len() {
        return Err(decoder.unsupported("num_hidden_layers", &decoder.num_layers.to_string()));
    }
    decoder.only(fields, "mlp_hidden_act", &["relu2"])?;
    decoder.only(fields, "mamba_hidden_act", &["silu", "swish"])?;
    decoder.refuse(fields, &["residual_in_fp32"])?;
    // How the reference computes and trains, and what is said once more.
    state_space::understand_steps(&decoder, fields)?;
    fields.understand(&[
        "chunk_size",
        "expand",
        "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "norm_eps",
        "rms_norm_eps",
        "rescale_prenorm_residual",
        "use_mamba_kernels",
    ]);
    let has = |kind| kinds.contains(&kind);
    let mamba = has(Kind::Mamba).then(|| mamba(&decoder, fields)).transpose()?;
    let network = has(Kind::Network).then(|| network(&decoder, fields)).transpose()?;
    let experts = has(Kind::Experts).then(|| experts(&decoder, fields)).transpose()?;
    // Of kinds of layers that this model does not have.
    fields.understand(&[
        "conv_kernel",
        "mamba_head_dim",
        "mamba_num_heads",
        "mamba_proj_bias",
        "mlp_bias",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "n_group",
        "n_groups",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "ssm_state_size",
        "topk_group",
        "use_bias",
        "use_conv_bias",
    ]);
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let attention = AttentionSpec {
        qkv: Joined::Separate(["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"].map(Name::Borrowed)),
        output: Name::Borrowed("mixer.o_proj"),
        qkv_bias: bias,
        output_bias: bias,
        rotation: None,
        ..decoder.attention()
    };
    let op = |kind: &Kind| match kind {
        Kind::Mamba => mamba.clone().map(Op::Mamba),
        Kind::Attention => Some(Op::Attention(attention.clone())),
        Kind::Experts => experts.clone(),
        Kind::Network => network.clone().map(Op::Mlp),
    };
    let layer = |op| LayerSpec::pre_norm([(decoder.norm("norm"), op)]);
    let layers = kinds.iter().filter_map(op).map(layer).collect();
    let final_norm = decoder.norm("backbone.norm_f");
    let model = decoder.model(layers, false);
    let model = if mlx::is_of_mlx(fields) { mlx::with_taps_first(model) } else { model };
    Ok(ModelSpec {
        embedding: Name::Borrowed("backbone.embeddings.weight"),
        layer_prefix: Name::Borrowed("backbone.layers."),
        final_norm,
        rotations: Vec::new(),
        ..model
    })
}

/// The kind of every layer: a character for each, or in newer files a word.
fn kinds(fields: &Fields<'_>) -> Result<Vec<Kind>, ConfigError> {
    const PATTERN: &str = "hybrid_override_pattern";
    const WORDS: &str = "layers_block_type";
    let (field, names): (_, Vec<String>) = match (fields.text(PATTERN)?, fields.get(WORDS)) {
        (Some(pattern), _) => (PATTERN, pattern.chars().map(String::from).collect()),
        (None, Some(words)) => {
            let refused = || wrong(WORDS, "a list of strings", words);
            let words = words.as_array().ok_or_else(refused)?.iter();
            let words = words.map(|word| word.as_str().map(str::to_owned));
            (WORDS, words.collect::<Option<_>>().ok_or_else(refused)?)
        }
        (None, None) => return Err(ConfigError::Missing { field: PATTERN.to_owned() }),
    };
    let architecture = FAMILY.architecture;
    if names.is_empty() || names.len() > limit::LAYERS {
        let (field, found) = (field.to_owned(), format!("{} layers", names.len()));
        return Err(ConfigError::Unsupported { field, found, architecture });
    }
    let kind = |(layer, name): (usize, String)| match name.as_str() {
        "M" | "mamba" | "linear_attention" => Ok(Kind::Mamba),
        "*" | "attention" | "full_attention" => Ok(Kind::Attention),
        "E" | "moe" => Ok(Kind::Experts),
        "-" | "mlp" => Ok(Kind::Network),
        _ => Err(ConfigError::UnsupportedLayerType { layer, found: name, architecture }),
    };
    names.into_iter().enumerate().map(kind).collect()
}

fn mamba(decoder: &Decoder, fields: &Fields<'_>) -> Result<MambaSpec, ConfigError> {
    let size = |field, most, default| {
        Ok::<_, ConfigError>(fields.optional_size(field, most)?.unwrap_or(default))
    };
    let heads = size("mamba_num_heads", limit::HEADS, 128)?;
    let groups = size("n_groups", heads, 8)?;
    if heads % groups != 0 {
        return Err(decoder.unsupported("n_groups", &groups.to_string()));
    }
    let sizes = Sizes {
        heads,
        head_dim: size("mamba_head_dim", limit::HEAD_DIM, 64)?,
        groups,
        state_dim: size("ssm_state_size", limit::HEAD_DIM, 128)?,
        taps: size("conv_kernel", limit::TAPS, 4)?,
    };
    let mut mamba = state_space::mamba(decoder, sizes, MODULES);
    if fields.flag("use_conv_bias")? == Some(false) {
        mamba.convolution.bias = None;
    }
    let bias = fields.flag("use_bias")?.unwrap_or(false);
    let said = fields.flag("mamba_proj_bias")?.unwrap_or(bias);
    if said != bias {
        return Err(decoder.unsupported("mamba_proj_bias", &said.to_string()));
    }
    Ok(MambaSpec { input_bias: bias, output_bias: bias, norm_groups: groups, ..mamba })
}

/// A network without a gate, of this width.
fn plain(
    decoder: &Decoder,
    fields: &Fields<'_>,
    [up, down]: [&'static str; 2],
    inner_size: usize,
) -> Result<MlpSpec, ConfigError> {
    Ok(MlpSpec {
        gate_up: GateUp::Plain(Name::Borrowed(up)),
        down: Name::Borrowed(down),
        bias: fields.flag("mlp_bias")?.unwrap_or(false),
        ..decoder.mlp_of(fields, Activation::Relu2, inner_size)?
    })
}

fn network(decoder: &Decoder, fields: &Fields<'_>) -> Result<MlpSpec, ConfigError> {
    plain(decoder, fields, ["mixer.up_proj", "mixer.down_proj"], decoder.inner_size()?)
}

fn experts(decoder: &Decoder, fields: &Fields<'_>) -> Result<Op, ConfigError> {
    const SHARED: [&str; 2] = ["mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"];
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let shared = fields.size("moe_shared_expert_intermediate_size", limit::INNER)?;
    let shared = plain(decoder, fields, SHARED, shared)?;
    fields.understand(&["n_shared_experts"]); // They are one network, as wide as that says.
    let correction =
        CorrectionSpec { name: Name::Borrowed("mixer.gate.e_score_correction_bias"), axes: 1 };
    let router = RouterSpec {
        path: Name::Borrowed("mixer.gate"),
        correction: Some(correction),
        ..mixture::grouped(fields, ROUTED)?
    };
    let expert = plain(decoder, fields, ["up_proj", "down_proj"], inner_size)?;
    if expert.bias {
        return Err(decoder.unsupported("mlp_bias", "true")); // The reference's experts have none, and all else has.
    }
    let hidden_size = expert.hidden_size;
    let width = fields.optional_size("moe_latent_size", hidden_size)?;
    let projections = width.map(|_| ExpertProjectionsSpec {
        hidden_size,
        input: Name::Borrowed("mixer.fc1_latent_proj"),
        output: Name::Borrowed("mixer.fc2_latent_proj"),
    });
    let expert = MlpSpec { hidden_size: width.unwrap_or(hidden_size), ..expert };
    let experts = decoder.experts(fields, MIXTURE, &expert, inner_size, router)?;
    let gate_up = expert.gate_up;
    let experts =
        ExpertsSpec { expert: MlpSpec { gate_up, ..experts.expert }, projections, ..experts };
    Ok(Op::Sum(vec![Op::Experts(experts), Op::Mlp(shared)]))
}
