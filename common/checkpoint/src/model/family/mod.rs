//! The families of models that run: each turns the fields of a configuration into a [`ModelSpec`], in a file of its own.

mod apertus;
mod arcee;
mod cohere2;
mod decoder;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod entry;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon_h1;
mod gated_delta;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod hunyuan_dense;
mod hybrid;
mod kimi_linear;
mod laguna;
mod latent;
mod lfm;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral3;
mod mixtral;
mod mixture;
mod mlx;
mod multipliers;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi3;
mod qwen;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod seed_oss;
mod small_gemma;
mod smollm3;
mod solar_open;
mod starcoder2;
mod state_space;
mod wrapper;

use super::error::ConfigError;
use super::fields::Fields;
pub use entry::Family;

/// Every family that this project runs.
pub const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    phi3::FAMILY,
    gemma3::TEXT,
    gemma3::FAMILY,
    qwen3_moe::FAMILY,
    gemma2::FAMILY,
    olmo2::FAMILY,
    smollm3::FAMILY,
    exaone4::FAMILY,
    glm4::FAMILY,
    granite::FAMILY,
    seed_oss::FAMILY,
    ernie4_5::FAMILY,
    hunyuan_dense::FAMILY,
    cohere2::FAMILY,
    mixtral::FAMILY,
    arcee::FAMILY,
    olmo3::FAMILY,
    qwen2_moe::FAMILY,
    glm4_moe::FAMILY,
    dots1::FAMILY,
    minimax_m2::FAMILY,
    ernie4_5_moe::FAMILY,
    ministral3::FAMILY,
    mistral3::FAMILY,
    gemma4::TEXT,
    gemma4::FAMILY,
    gemma4::UNIFIED,
    deepseek_v3::FAMILY,
    deepseek_v3::KIMI_K2,
    deepseek_v32::FAMILY,
    glm4_moe_lite::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    qwen3_5::TEXT,
    qwen3_5::FAMILY,
    qwen3_5_moe::TEXT,
    qwen3_5_moe::FAMILY,
    qwen3_next::FAMILY,
    granite_hybrid::FAMILY,
    nemotron_h::FAMILY,
    kimi_linear::FAMILY,
    falcon_h1::FAMILY,
    laguna::FAMILY,
    apertus::FAMILY,
    gpt_oss::FAMILY,
    llama4::TEXT,
    llama4::FAMILY,
    starcoder2::FAMILY,
    gemma3n::TEXT,
    gemma3n::FAMILY,
    granite_moe::FAMILY,
    olmoe::FAMILY,
    solar_open::FAMILY,
    exaone_moe::FAMILY,
    exaone_moe::AS_PUBLISHED,
    glm_moe_dsa::FAMILY,
    qwen3_vl::FAMILY,
];

/// The family that `architectures` and `model_type` name; where both are given they must agree.
pub(super) fn of(fields: &Fields<'_>) -> Result<&'static Family, ConfigError> {
    let model_type = fields.text("model_type")?;
    let unsupported = |field, found: &str| {
        let mut supported: Vec<_> = FAMILIES.iter().map(|it| it.architecture).collect();
        supported.dedup(); // Those of one architecture follow each other.
        let (found, supported) = (found.to_owned(), supported.join(", "));
        ConfigError::UnsupportedArchitecture { field, found, supported }
    };
    let find = |is_it: &dyn Fn(&Family) -> bool| FAMILIES.iter().find(|family| is_it(family));
    match (fields.first_text("architectures")?, model_type) {
        (None, None) => Err(ConfigError::NoArchitecture),
        (None, Some(name)) => {
            find(&|family| family.model_type == name).ok_or_else(|| unsupported("model_type", name))
        }
        (Some(architecture), model_type) => {
            let of_name = |family: &Family| family.architecture == architecture;
            let first = find(&of_name).ok_or_else(|| unsupported("architectures", architecture))?;
            let Some(name) = model_type else { return Ok(first) };
            find(&|family| of_name(family) && family.model_type == name).ok_or_else(|| {
                let (architecture, model_type) = (architecture.to_owned(), name.to_owned());
                ConfigError::ConflictingArchitecture { architecture, model_type }
            })
        }
    }
}
