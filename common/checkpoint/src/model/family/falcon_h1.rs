//! Falcon-H1: attention and Mamba 2 side by side in every layer, and a multiplier wherever there can be one.
//!
//! `FalconH1ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mlx::{is_of_mlx, with_taps_first};
use super::state_space::{self, numbers};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::recurrent::MambaSpec;
use crate::model::rope::Rotary;
use crate::model::spec::{
    AttentionSpec, Branch, GateUp, Joined, LayerSpec, MlpSpec, Name, NormedSpec, Op,
};
use crate::model::whole::{LogitsSpec, ModelSpec};

pub(super) const FAMILY: Family =
    Family { architecture: "FalconH1ForCausalLM", model_type: "falcon_h1", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    // What is multiplied before a product is multiplied after it here, where nothing may be added between.
    decoder
        .refuse(fields, &["attention_bias", "mamba_proj_bias", "mlp_bias", "projectors_bias"])?;
    decoder.require(fields, &["mamba_use_mlp"])?;
    fields.understand(&["mlp_expansion_factor"]); // Nobody asks for it.
    let factor = |field| {
        let given = fields.optional_number(field, 0.0, limit::FACTOR)?;
        Ok::<_, ConfigError>(given.unwrap_or(1.0))
    };
    // MLX has most multipliers in the weights (`falcon_h1` in mlx-lm), but neither the one of keys nor that of what values are
    // made of.
    let mlx = is_of_mlx(fields);
    let own = |factor: f64| if mlx { 1.0 } else { factor };
    let mamba = mamba(&decoder, fields, factor("ssm_in_multiplier")?, mlx)?;
    let (input, keys) = (factor("attention_in_multiplier")?, factor("key_multiplier")?);
    let plain = decoder.attention();
    // Queries and keys, and so their products twice.
    let scale = plain.scale * own(input) * own(input) * keys;
    let attention = AttentionSpec { scale, ..plain };
    let [gate, network] = numbers(fields, "mlp_multipliers")?.unwrap_or([1.0; 2]);
    let mlp = MlpSpec {
        gate_up: GateUp::Gated(Joined::Separate(
            ["feed_forward.gate_proj", "feed_forward.up_proj"].map(Name::Borrowed),
        )),
        down: Name::Borrowed("feed_forward.down_proj"),
        gate_multiplier: Some(own(gate) as f32),
        ..decoder.mlp(fields)?
    };
    let part = |op, multiplier: f64| {
        let multiplier = Some(multiplier as f32);
        Op::Normed(Box::new(NormedSpec { pre: None, op, post: None, multiplier }))
    };
    let both = Op::Sum(vec![
        part(Op::Mamba(mamba), own(factor("ssm_out_multiplier")?)),
        part(Op::Attention(attention), own(factor("attention_out_multiplier")?) * input),
    ]);
    let branch = |norm, op, multiplier| Branch {
        multiplier,
        ..Branch::new(Some(decoder.norm(norm)), op, None)
    };
    let layer = LayerSpec::of(vec![
        branch("input_layernorm", both, 1.0),
        branch("pre_ff_layernorm", Op::Mlp(mlp), own(network) as f32),
    ]);
    let (embedding, logits) = (factor("embedding_multiplier")?, factor("lm_head_multiplier")?);
    let layers = vec![layer; decoder.num_layers];
    let final_norm = decoder.norm("model.final_layernorm");
    let model = decoder.model(layers, false);
    let of_head = match mlx && model.tie_word_embeddings {
        true => logits / embedding, // The head has what the embedding was multiplied with.
        false => own(logits),
    };
    let logits = LogitsSpec { multiplier: of_head as f32, softcap: None };
    let embedding_multiplier = own(embedding) as f32;
    let model = if mlx { with_taps_first(model) } else { model };
    Ok(ModelSpec { embedding_multiplier, final_norm, logits, ..model })
}

fn mamba(
    decoder: &Decoder,
    fields: &Fields<'_>,
    input: f64,
    mlx: bool,
) -> Result<MambaSpec, ConfigError> {
    let inner = fields.optional_size("mamba_d_ssm", limit::INNER)?;
    let mamba = state_space::read(decoder, fields, inner)?;
    let parts = numbers::<5>(fields, "ssm_multipliers")?.unwrap_or([1.0; 5]);
    let before_gate = fields.flag("mamba_norm_before_gate")?.unwrap_or(true);
    let has_norm = fields.flag("mamba_rms_norm")?.unwrap_or(false);
    Ok(MambaSpec {
        multipliers: (!mlx).then(|| parts.map(|part| (part * input) as f32)),
        norm: mamba.norm.filter(|_| has_norm),
        norm_groups: mamba.groups,
        norm_before_gate: before_gate,
        ..mamba
    })
}
