//! What EXAONE's families share: norms of each head; and where some layers see a window, the others know no positions.

use serde_json::Value;

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::spec::AttentionSpec;
use crate::model::window::{self, WindowRule};

const DEFAULT_WINDOW: usize = 4096;
const WINDOWS: WindowRule = WindowRule::All { default: Some(DEFAULT_WINDOW), but_each: Some(4) };
/// Where the window is null, all layers see everything.
const NO_WINDOWS: WindowRule = WindowRule::All { default: None, but_each: None };

/// The attention of every layer.
///
/// # Errors
/// If windows are said in a way that means another computation.
pub(super) fn attention(
    decoder: &Decoder,
    fields: &Fields<'_>,
) -> Result<Vec<AttentionSpec>, ConfigError> {
    let is_null = fields.has("sliding_window") && fields.get("sliding_window").is_none();
    let rule = if is_null { NO_WINDOWS } else { WINDOWS };
    let windows = match fields.get("sliding_window_pattern").and_then(Value::as_str) {
        // Letters, which the list beside them has in words.
        Some(letters) if fields.get("layer_types").is_none() && !is_null => {
            let window = fields.optional_size("sliding_window", limit::POSITIONS)?;
            fields.understand(&["layer_types", "sliding_window_pattern"]);
            by_letters(letters, window.unwrap_or(DEFAULT_WINDOW), decoder.num_layers)
                .ok_or_else(|| decoder.unsupported("sliding_window_pattern", letters))?
        }
        _ => window::read(fields, decoder.architecture, rule, decoder.num_layers)?,
    };
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let layer = |window: Option<usize>| {
        let rotation = (is_null || window.is_some()).then_some(0);
        let (qk_norm, plain) = (Some(norms.clone()), decoder.attention());
        AttentionSpec { qk_norm, window, rotation, ..plain }
    };
    Ok(windows.into_iter().map(layer).collect())
}

/// A window where the pattern has an L, over and over; the last layer sees everything. `None` for other letters.
fn by_letters(letters: &str, window: usize, num_layers: usize) -> Option<Vec<Option<usize>>> {
    let kinds: Vec<bool> = (letters.chars())
        .map(|letter| match letter {
            'L' => Some(true),
            'G' => Some(false),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let is_last = |layer: usize| layer + 1 == num_layers;
    let of_layer = |layer: usize| {
        let local = *kinds.get(layer % kinds.len().max(1))?;
        Some((local && !is_last(layer)).then_some(window))
    };
    (0..num_layers).map(of_layer).collect()
}
