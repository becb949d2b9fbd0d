//! Qwen3-Next and Qwen3-Coder-Next: a gated delta rule on most layers, gated attention on the others, and experts on all.
//!
//! `Qwen3NextForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::mixture::sparse_layers_by_step;
use super::{gated_delta, mlx};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::recurrent::DeltaInputs;
use crate::model::rope::Rotary;
use crate::model::spec::{Name, Op};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3NextForCausalLM", model_type: "qwen3_next", read };

const ROTARY: Rotary = Rotary { part: 0.25, ..Rotary::PARTIAL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let mlx = mlx::is_of_mlx(fields);
    let decoder = gated_delta::decoder(fields, FAMILY.architecture, ROTARY, mlx)?;
    let mlp = decoder.mlp(fields)?;
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(true);
    let sparse = gated_delta::mixture(&decoder, fields, renormalise)?;
    let is_sparse = sparse_layers_by_step(fields)?;
    let inputs = DeltaInputs::ByHead {
        qkv_gate: Name::Borrowed("linear_attn.in_proj_qkvz"),
        correction_decay: Name::Borrowed("linear_attn.in_proj_ba"),
    };
    let second = |layer| if is_sparse(layer) { sparse.clone() } else { Op::Mlp(mlp.clone()) };
    gated_delta::model(decoder, fields, inputs, mlx, second)
}
