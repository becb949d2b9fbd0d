//! Which files hold tensors of which layers, by an index.

use std::collections::BTreeSet;

use cake_checkpoint::LayerRange;
use cake_checkpoint::container::safetensors::index::Index;

/// What the part of a tensor's name before a layer's number is.
const LAYERS: &str = "layers";
/// In the names of towers that stand beside the language model.
const TOWERS: &[&str] = &["vision", "visual", "audio", "encoder"];

/// The files of an index that hold something of these layers; `Err` says how many layers it knows, if there is nothing.
pub(crate) fn files_of_layers(
    index: &Index,
    layers: LayerRange,
) -> Result<BTreeSet<String>, usize> {
    let mut files = BTreeSet::new();
    let mut count = 0;
    for (tensor, file) in &index.weight_map {
        let Some(layer) = layer_of(tensor) else { continue };
        count = count.max(layer.saturating_add(1));
        if (layers.start..layers.end).contains(&layer) {
            files.insert(file.clone());
        }
    }
    if files.is_empty() { Err(count) } else { Ok(files) }
}

/// The number of the decoder layer that a tensor is of. The number is read as one: `layers.1.` is not in `layers.10.`.
fn layer_of(tensor: &str) -> Option<usize> {
    let mut parts = tensor.split('.');
    for part in parts.by_ref() {
        if TOWERS.iter().any(|tower| part.contains(tower)) {
            return None;
        }
        if part == LAYERS {
            break;
        }
    }
    let number = parts.next()?;
    let plain =
        number.bytes().all(|b| b.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
    parts.next().filter(|_| plain).and_then(|_| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_number_is_read_and_not_its_prefix() {
        for (tensor, expected) in [
            ("model.layers.1.mlp.weight", Some(1)),
            ("model.layers.10.mlp.weight", Some(10)),
            ("model.language_model.layers.3.mlp.experts.12.w", Some(3)),
            ("layers.7.w", Some(7)),
            ("model.layers.01.w", None),
            ("model.layers.1", None),
            ("model.layers.x.w", None),
            ("model.vision_tower.encoder.layers.1.w", None),
            ("model.embed_tokens.weight", None),
        ] {
            assert_eq!(layer_of(tensor), expected, "{tensor}");
        }
    }

    #[test]
    fn files_are_those_that_hold_something_of_the_layers() {
        let json = br#"{"weight_map":{"model.layers.1.w":"a.safetensors","model.layers.10.w":"b.safetensors",
            "model.layers.2.w":"b.safetensors","model.layers.2.v":"c.safetensors","lm_head.weight":"d.safetensors"}}"#;
        let index = Index::parse(json).unwrap();
        let files = |start, end| files_of_layers(&index, LayerRange::new(start, end));
        let names = |start, end| files(start, end).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(names(1, 2), ["a.safetensors"]);
        assert_eq!(names(2, 3), ["b.safetensors", "c.safetensors"]);
        assert_eq!(names(0, 99), ["a.safetensors", "b.safetensors", "c.safetensors"]);
        assert_eq!(files(11, 12), Err(11));
    }
}
