//! What Qwen's families share: windows of the dense ones, and of Qwen3.5, with experts and without, how the text model lies
//! beside others.

use serde_json::Map;

use super::wrapper::Wrapper;
use crate::model::fields::Fields;
use crate::model::recurrent::DeltaInputs;
use crate::model::rope::{MROPE_SECTION, Rotary};
use crate::model::spec::Name;
use crate::model::window::WindowRule;

/// When the configuration gives no `layer_types`, in Qwen2 and Qwen3.
pub(super) const WINDOWS: WindowRule =
    WindowRule::FromLayer { default_window: 4096, default_first: 28 };

/// Of pictures and of sounds: of text alone, all three of its positions are the same.
pub(super) const ROTARY: Rotary = Rotary {
    theta: 1e7,
    part: 0.25,
    beside: &[MROPE_SECTION, "mrope_interleaved"],
    ..Rotary::PARTIAL
};
/// How files of the Hub have the text model beside others.
pub(super) const WRAPPER: Wrapper = Wrapper {
    architecture: "",
    replaced: "model.",
    prefix: "model.language_model.",
    other_names: &[],
    defaults: Map::new,
    texts: &[],
    others: &["model.visual."],
    tied: false,
    fields: &[
        "image_token_id",
        "language_model_only",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ],
};

/// How MLX's files have it.
pub(super) fn of_mlx(wrapper: Wrapper) -> Wrapper {
    let others = &["vision_tower.", "model.visual.", "language_model.mtp."];
    Wrapper { replaced: "", prefix: "language_model.", others, ..wrapper }
}

/// Of layers that predict further tokens, which are not used, and what is always so here.
pub(super) fn understand(fields: &Fields<'_>) {
    fields.understand(&[
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
    ]);
}

/// The modules of the delta rule.
pub(super) fn inputs() -> DeltaInputs {
    DeltaInputs::Joined {
        qkv: Name::Borrowed("linear_attn.in_proj_qkv"),
        gate: Name::Borrowed("linear_attn.in_proj_z"),
        correction: Name::Borrowed("linear_attn.in_proj_b"),
        decay: Name::Borrowed("linear_attn.in_proj_a"),
    }
}
