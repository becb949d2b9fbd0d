//! HunYuan, dense: Llama's layers, with norms of queries and keys after their rotation.
//!
//! `HunYuanDenseV1ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "HunYuanDenseV1ForCausalLM", model_type: "hunyuan_v1_dense", read };

const ROTARY: Rotary = Rotary { alpha: true, ..Rotary::FULL };
/// Tokens among others, sizes of what is not there, and how the reference shares work.
const OTHERS: &[&str] = &[
    "cla_share_factor",
    "dense_list",
    "eod_token_id",
    "im_end_id",
    "im_newline_id",
    "im_start_id",
    "mask_init_id",
    "org_vocab_size",
    "pad_id",
    "pool_type",
    "sep_token_id",
    "text_end_id",
    "text_start_id",
    "video_end_id",
    "video_start_id",
];
const NORMS: [&str; 2] = ["self_attn.query_layernorm", "self_attn.key_layernorm"];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.require(fields, &["use_qk_norm", "use_rotary_pos_emb"])?;
    decoder.refuse(fields, &["use_cla"])?;
    decoder.only(fields, "norm_type", &["rms"])?;
    if let Some(other) = fields.optional_size("attention_head_dim", limit::HEAD_DIM)?
        && other != decoder.attention().head_dim
    {
        return Err(decoder.unsupported("attention_head_dim", &other.to_string()));
    }
    fields.understand(OTHERS);
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let mlp = MlpSpec { bias: mlp_bias, ..decoder.mlp(fields)? };
    let norms = NORMS.map(|path| decoder.head_norm(path));
    let layer = |_| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            qk_norm_after_rotation: true,
            ..decoder.attention()
        };
        decoder.layer(attention, &mlp)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
