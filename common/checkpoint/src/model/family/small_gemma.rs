//! What the smallest models of Gemma have: numbers that each layer is given of a token, and layers at the end that attend to
//! keys and values of earlier ones.

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::given::{GivenSpec, WithGivenSpec};
use crate::model::limit;
use crate::model::spec::{Activation, Branch, Name, NormSpec, Op};

/// Rows of the table where a configuration does not say.
const TABLE_ROWS: usize = 262_144;

/// What layers are given, if that is anything. `default`: how many numbers where the configuration does not say.
pub(super) fn given(
    fields: &Fields<'_>,
    decoder: &Decoder,
    default: usize,
) -> Result<Option<GivenSpec>, ConfigError> {
    let width = fields.optional_whole("hidden_size_per_layer_input", 0, limit::HIDDEN)?;
    let rows = fields.optional_size("vocab_size_per_layer_input", limit::VOCAB)?;
    let width = width.unwrap_or(default);
    Ok((width > 0).then(|| GivenSpec {
        width,
        table: Name::Borrowed("model.embed_tokens_per_layer"),
        rows: rows.unwrap_or(TABLE_ROWS),
        row_multiplier: (width as f64).sqrt() as f32,
        projection: Name::Borrowed("model.per_layer_model_projection"),
        product_multiplier: (decoder.hidden_size as f64).powf(-0.5) as f32,
        norm: NormSpec { width, ..decoder.norm("model.per_layer_projection_norm") },
        multiplier: 0.5_f64.sqrt() as f32,
    }))
}

/// What a layer makes of so many numbers that it is given.
pub(super) fn with_given(decoder: &Decoder, width: usize) -> Branch {
    let op = Op::WithGiven(WithGivenSpec {
        hidden_size: decoder.hidden_size,
        width,
        gate: Name::Borrowed("per_layer_input_gate"),
        activation: Activation::GeluTanh,
        output: Name::Borrowed("per_layer_projection"),
    });
    Branch::new(None, op, Some(decoder.norm("post_per_layer_input_norm")))
}

/// The layer whose keys and values each layer attends to, if it makes none: for the last `num_kv_shared_layers` the last one
/// before them of the same kind, with or without a window. `default`: how many these are where the configuration does not say.
pub(super) fn keys_of(
    fields: &Fields<'_>,
    decoder: &Decoder,
    windows: &[Option<usize>],
    default: usize,
) -> Result<Vec<Option<usize>>, ConfigError> {
    const FIELD: &str = "num_kv_shared_layers";
    let shared = fields.optional_whole(FIELD, 0, limit::LAYERS)?.unwrap_or(default);
    let unsupported = || decoder.unsupported(FIELD, &shared.to_string());
    let own = windows.len().checked_sub(shared).ok_or_else(unsupported)?;
    let source = |(layer, window): (usize, &Option<usize>)| {
        if layer < own {
            return Ok(None);
        }
        let alike = |other: &Option<usize>| other.is_some() == window.is_some();
        windows[..own].iter().rposition(alike).map(Some).ok_or_else(unsupported)
    };
    windows.iter().enumerate().map(source).collect()
}
