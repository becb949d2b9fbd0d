//! Which layers see only a window of the past.

use super::error::ConfigError;
use super::fields::{Fields, wrong};
use super::limit;

/// Which layers see only a window of the past, when the configuration gives no `layer_types`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowRule {
    /// None; the reference ignores `sliding_window` here.
    Never,
    /// All, if `sliding_window` is a number.
    All {
        /// The window when the key is absent (which is not the same as null).
        default: Option<usize>,
        /// But each `sliding_window_pattern`-th sees everything, if there may be such; how many when the key is absent.
        but_each: Option<usize>,
    },
    /// If `use_sliding_window`, those from `max_window_layers` on.
    FromLayer {
        /// The window when the key is absent.
        default_window: usize,
        /// `max_window_layers` when the key is absent.
        default_first: usize,
    },
    /// If `sliding_window` is a number, those from `max_window_layers` on.
    Beyond {
        /// The window when the key is absent.
        default_window: usize,
        /// `max_window_layers` when the key is absent.
        default_first: usize,
    },
}

/// The window of every layer. `layer_types`, where given, decides; else the family's rule.
pub(super) fn read(
    fields: &Fields<'_>,
    architecture: &'static str,
    rule: WindowRule,
    num_layers: usize,
) -> Result<Vec<Option<usize>>, ConfigError> {
    fields.understand(&["use_sliding_window", "max_window_layers"]);
    let given = fields.optional_whole("sliding_window", 1, limit::POSITIONS);
    let window = match rule {
        WindowRule::Never => None,
        WindowRule::All { default, but_each } => {
            if but_each.is_some() {
                // The second is what the class itself writes, beside the list that it made of it.
                fields.understand(&["sliding_window_pattern", "_sliding_window_pattern"]);
            }
            if fields.has("sliding_window") { given? } else { default }
        }
        WindowRule::Beyond { default_window, .. } => match fields.has("sliding_window") {
            true => given?,
            false => Some(default_window),
        },
        WindowRule::FromLayer { default_window, .. } => {
            if !fields.flag("use_sliding_window")?.unwrap_or(false) {
                None
            } else if fields.has("sliding_window") {
                given?
            } else {
                Some(default_window)
            }
        }
    };
    let Some(value) = fields.get("layer_types") else {
        let whole = |field, least, default| {
            let given = fields.optional_whole(field, least, limit::POSITIONS)?;
            Ok::<_, ConfigError>(given.unwrap_or(default))
        };
        let (first, pattern) = match rule {
            WindowRule::FromLayer { default_first, .. }
            | WindowRule::Beyond { default_first, .. } => {
                (whole("max_window_layers", 0, default_first)?, None)
            }
            WindowRule::All { but_each: Some(default), .. } => {
                (0, Some(whole("sliding_window_pattern", 1, default)?))
            }
            WindowRule::Never | WindowRule::All { but_each: None, .. } => (0, None),
        };
        let slides = |layer: usize| {
            layer >= first && pattern.is_none_or(|each| !(layer + 1).is_multiple_of(each))
        };
        if let (Some(_), None, Some(layer)) =
            (pattern, window, (0..num_layers).find(|it| slides(*it)))
        {
            // There, layers without a window are of another kind.
            return Err(ConfigError::NoWindow { layer, reason: "sliding_window is null" });
        }
        return Ok((0..num_layers).map(|layer| window.filter(|_| slides(layer))).collect());
    };
    let types = value.as_array().ok_or_else(|| wrong("layer_types", "a list", value))?;
    if types.len() != num_layers {
        return Err(ConfigError::LayerTypesLength { expected: num_layers, found: types.len() });
    }
    let of_layer = |(layer, value): (usize, &serde_json::Value)| match value.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") if rule != WindowRule::Never => match window {
            Some(window) => Ok(Some(window)),
            None if matches!(rule, WindowRule::FromLayer { .. }) => {
                let reason = "use_sliding_window is false or sliding_window is null";
                Err(ConfigError::NoWindow { layer, reason })
            }
            None => Err(ConfigError::NoWindow { layer, reason: "sliding_window is null" }),
        },
        Some(other) => {
            Err(ConfigError::UnsupportedLayerType { layer, found: other.to_owned(), architecture })
        }
        None => Err(wrong("layer_types", "a list of strings", value)),
    };
    types.iter().enumerate().map(of_layer).collect()
}
