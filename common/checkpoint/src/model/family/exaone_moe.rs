//! K-EXAONE: EXAONE 4's attention behind norms instead of before them; after the first layers a mixture with a network beside
//! it.
//!
//! `ExaoneMoeForCausalLM` in Hugging Face transformers.

use serde_json::Value;

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture, Routed};
use super::{exaone, mlx};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, shown};
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{CorrectionSpec, MlpSpec, Name, Op, RouterSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "ExaoneMoeForCausalLM", model_type: "exaone_moe", read };
/// As published files call the class.
pub(super) const AS_PUBLISHED: Family = Family { architecture: "ExaoneMoEForCausalLM", ..FAMILY };

const DEFAULTS: Routed = Routed { shared: 1, renormalise: true, groups: (1, 1), multiplier: 2.5 };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let attention = exaone::attention(&decoder, fields)?;
    let mlp = decoder.mlp(fields)?;
    let sparse = mixture(&decoder, fields, &mlp)?;
    let is_sparse = mixture::sparse_layers(&decoder, fields, 1)?;
    // Published files say the same in words of their own.
    let dense = is_sparse.iter().take_while(|is_sparse| !**is_sparse).count();
    let the_same = [
        ("is_moe_layer", Value::from(is_sparse.clone())),
        ("first_last_k_dense_replace", Value::from(dense)),
    ];
    for (field, same) in the_same {
        match fields.get(field) {
            Some(other) if *other != same => return Err(decoder.unsupported(field, &shown(other))),
            _ => {}
        }
    }
    let layer = |(attention, is_sparse)| match is_sparse {
        true => decoder.pre_norm(attention, sparse.clone()),
        false => decoder.layer(attention, &mlp),
    };
    let layers = attention.into_iter().zip(is_sparse).map(layer).collect();
    Ok(decoder.model(layers, false))
}

fn mixture(decoder: &Decoder, fields: &Fields<'_>, mlp: &MlpSpec) -> Result<Op, ConfigError> {
    decoder.only(fields, "scoring_func", &["sigmoid"])?;
    decoder.only(fields, "topk_method", &["noaux_tc"])?;
    let name = Name::Borrowed(match mlx::is_of_mlx(fields) {
        false => "mlp.e_score_correction_bias",
        true => "mlp.gate.e_score_correction_bias",
    });
    let router = RouterSpec {
        correction: Some(CorrectionSpec { name, axes: 1 }),
        ..mixture::grouped(fields, DEFAULTS)?
    };
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let shared = fields.optional_whole("num_shared_experts", 0, limit::EXPERTS_OF_LAYER)?;
    let shared = inner_size.saturating_mul(shared.unwrap_or(DEFAULTS.shared));
    let experts = decoder.experts(fields, Mixture::USUAL, mlp, inner_size, router)?;
    Ok(mixture::with_shared(experts, mlp, mixture::SHARED, shared))
}
