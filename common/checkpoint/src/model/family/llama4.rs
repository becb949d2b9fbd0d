//! Llama 4: attention in segments where heads are turned, queries that grow with their position where they are not, and on some
//! layers experts that get weighed rows, beside a network for all of them.
//!
//! `Llama4ForCausalLM` and `Llama4ForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use serde_json::Map;

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use super::wrapper::Wrapper;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::rotation::RotaryPairs;
use crate::model::spec::{
    Activation, AttentionSpec, GateUp, Joined, MlpSpec, Name, Op, PositionScale, RouterScores,
    RouterSpec,
};
use crate::model::whole::ModelSpec;

pub(super) const TEXT: Family =
    Family { architecture: "Llama4ForCausalLM", model_type: "llama4_text", read };
pub(super) const FAMILY: Family = Family {
    architecture: "Llama4ForConditionalGeneration",
    model_type: "llama4",
    read: |fields| WRAPPER.read(fields),
};

const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "",
    prefix: "language_model.",
    other_names: &[],
    defaults: Map::new,
    texts: &[(TEXT.model_type, read)],
    others: &["vision_model.", "multi_modal_projector."],
    tied: false,
    fields: &[
        "boi_token_id",
        "boi_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "vision_config",
    ],
};

const ROTARY: Rotary = Rotary { theta: 5e5, pairs: RotaryPairs::Neighbours, ..Rotary::FULL };
const MIXTURE: Mixture =
    Mixture { count: &["num_local_experts"], prefix: "feed_forward.experts.", ..Mixture::USUAL };
const NETWORK: [&str; 3] =
    ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"];
const SHARED: [&str; 3] = [
    "feed_forward.shared_expert.gate_proj",
    "feed_forward.shared_expert.up_proj",
    "feed_forward.shared_expert.down_proj",
];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    for field in ["head_dim", "num_key_value_heads"] {
        if !fields.has(field) {
            // The reference has a number of its own then, whatever the other sizes are.
            return Err(ConfigError::Missing { field: field.to_owned() });
        }
    }
    let decoder = Decoder::read(fields, TEXT.architecture, ROTARY)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let turned_norm = fields.flag("use_qk_norm")?.unwrap_or(true).then_some(decoder.eps);
    let rotates = rotates(fields, decoder.num_layers)?;
    let segments = segments(&decoder, fields, &rotates)?;
    let query_scale = query_scale(fields)?;
    let sparse = sparse_layers(fields, decoder.num_layers)?;
    let experts = match sparse.contains(&true) {
        true => Some(mixture(&decoder, fields)?),
        false => {
            fields.understand(&["num_local_experts", "num_experts_per_tok"]);
            None
        }
    };
    let dense = match sparse.contains(&false) {
        true => Some(Op::Mlp(network(&decoder, fields)?)),
        false => {
            fields.understand(&["intermediate_size_mlp"]);
            None
        }
    };
    let layer = |(index, is_sparse): (usize, bool)| {
        let turns = rotates[index];
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            turned_norm: turned_norm.filter(|_| turns),
            query_scale: query_scale.filter(|_| !turns),
            segment: segments[index],
            rotation: turns.then_some(0),
            ..decoder.attention()
        };
        let op = if is_sparse { &experts } else { &dense };
        decoder.pre_norm(attention, op.clone().expect("made, as some layer is of its kind"))
    };
    let layers = sparse.into_iter().enumerate().map(layer).collect();
    Ok(decoder.model(layers, false))
}

/// The network of a layer without experts.
fn network(decoder: &Decoder, fields: &Fields<'_>) -> Result<MlpSpec, ConfigError> {
    let inner_size = fields.size("intermediate_size_mlp", limit::INNER)?;
    let [gate, up, down] = NETWORK.map(Name::Borrowed);
    let gate_up = GateUp::Gated(Joined::Separate([gate, up]));
    Ok(MlpSpec { gate_up, down, ..decoder.mlp_of(fields, Activation::Silu, inner_size)? })
}

/// The experts of a layer and what is beside them.
fn mixture(decoder: &Decoder, fields: &Fields<'_>) -> Result<Op, ConfigError> {
    let router = RouterSpec {
        scores: RouterScores::SigmoidOfChosen,
        weighs_inputs: true,
        ..mixture::softmax("feed_forward.router", false)
    };
    let mlp = decoder.mlp(fields)?;
    let experts = decoder.experts(fields, MIXTURE, &mlp, mlp.inner_size, router)?;
    Ok(mixture::with_shared(experts, &mlp, SHARED, mlp.inner_size))
}

/// Whether each layer turns queries and keys: 1 in `no_rope_layers`, which may go on past the last one; else all but each so
/// many.
fn rotates(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigError> {
    const LIST: &str = "no_rope_layers";
    let interval = fields.optional_size("no_rope_layer_interval", limit::LAYERS)?.unwrap_or(4);
    let said = fields.wholes(LIST, 1)?;
    match fields.get(LIST) {
        Some(value) if !said.is_empty() => match said.get(..num_layers) {
            Some(said) => Ok(said.iter().map(|said| *said == 1).collect()),
            None => Err(wrong(LIST, "a number for each layer", value)),
        },
        _ => Ok((1..=num_layers).map(|number| !number.is_multiple_of(interval)).collect()),
    }
}

/// The segment of each layer: as `layer_types` says, else where heads are turned.
fn segments(
    decoder: &Decoder,
    fields: &Fields<'_>,
    rotates: &[bool],
) -> Result<Vec<Option<usize>>, ConfigError> {
    const SIZE: &str = "attention_chunk_size";
    const TYPES: &str = "layer_types";
    let given = fields.optional_size(SIZE, limit::POSITIONS)?;
    let size = if fields.has(SIZE) { given } else { Some(8192) };
    let Some(value) = fields.get(TYPES) else {
        return Ok(rotates.iter().map(|turns| size.filter(|_| *turns)).collect());
    };
    let types = value.as_array().ok_or_else(|| wrong(TYPES, "a list", value))?;
    if types.len() != rotates.len() {
        let (expected, found) = (rotates.len(), types.len());
        return Err(ConfigError::LayerTypesLength { expected, found });
    }
    let of_layer = |(layer, value): (usize, &serde_json::Value)| match value.as_str() {
        Some("full_attention") => Ok(None),
        Some("chunked_attention") if size.is_some() => Ok(size),
        Some("chunked_attention") => Err(decoder.unsupported(SIZE, "null")),
        Some(other) => {
            let (found, architecture) = (other.to_owned(), decoder.architecture);
            Err(ConfigError::UnsupportedLayerType { layer, found, architecture })
        }
        None => Err(wrong(TYPES, "a list of strings", value)),
    };
    types.iter().enumerate().map(of_layer).collect()
}

/// How queries grow that are not turned, if they do.
fn query_scale(fields: &Fields<'_>) -> Result<Option<PositionScale>, ConfigError> {
    const TUNING: &str = "attn_temperature_tuning";
    let beta = fields.optional_number("attn_scale", -limit::FACTOR, limit::FACTOR)?.unwrap_or(0.1);
    let span = fields.optional_size("floor_scale", limit::POSITIONS)?.unwrap_or(8192);
    let is_on = match fields.get(TUNING) {
        None => true,
        // Some files have a number there, of which any but 0 means that they do.
        Some(value) => match (value.as_bool(), value.as_u64()) {
            (Some(is_on), _) => is_on,
            (_, Some(number)) => number != 0,
            _ => return Err(wrong(TUNING, "true or false", value)),
        },
    };
    Ok(is_on.then_some(PositionScale { beta, span: span as f64, first: 1 }))
}

/// Which layers have experts: those that are listed, else each so many.
fn sparse_layers(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigError> {
    const LIST: &str = "moe_layers";
    const STEP: &str = "interleave_moe_layer_step";
    if fields.get(LIST).is_some() {
        fields.understand(&[STEP]);
        let listed = fields.wholes(LIST, limit::LAYERS)?;
        return Ok((0..num_layers).map(|layer| listed.contains(&layer)).collect());
    }
    let step = fields.optional_size(STEP, limit::LAYERS)?.unwrap_or(1);
    Ok((1..=num_layers).map(|number| number.is_multiple_of(step)).collect())
}
