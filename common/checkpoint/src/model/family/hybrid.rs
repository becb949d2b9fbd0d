//! What families of unlike layers share: which layer is of which kind.

use super::decoder::Decoder;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};

/// The kind of every layer: as the list `layer_types` has it in these words, or as `default` says where there is no list.
///
/// # Errors
/// If the list is of another length, or has other words.
pub(super) fn kinds<K: Copy>(
    decoder: &Decoder,
    fields: &Fields<'_>,
    words: &[(&str, K)],
    default: impl Fn(usize) -> K,
) -> Result<Vec<K>, ConfigError> {
    const TYPES: &str = "layer_types";
    let Some(value) = fields.get(TYPES) else {
        return Ok((0..decoder.num_layers).map(default).collect());
    };
    let types = value.as_array().ok_or_else(|| wrong(TYPES, "a list", value))?;
    let (expected, found) = (decoder.num_layers, types.len());
    if found != expected {
        return Err(ConfigError::LayerTypesLength { expected, found });
    }
    let kind = |(layer, value): (usize, &serde_json::Value)| {
        let word = value.as_str().ok_or_else(|| wrong(TYPES, "a list of strings", value))?;
        let known = words.iter().find(|(known, _)| *known == word);
        let (found, architecture) = (word.to_owned(), decoder.architecture);
        let unknown = || ConfigError::UnsupportedLayerType { layer, found, architecture };
        known.map(|(_, kind)| *kind).ok_or_else(unknown)
    };
    types.iter().enumerate().map(kind).collect()
}
