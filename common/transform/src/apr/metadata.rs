//! What an APR file says of its model: the format's own keys, and the Hub's texts under keys of ours.

use cake_checkpoint::container::apr::{MAX_METADATA_BYTES, TEXT_KEYS};
use cake_checkpoint::container::safetensors::CONFIG;
use cake_checkpoint::{Checkpoint, LayerSpec, Op};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::FORMAT;
use crate::convert::config::{forget_packed_modules, to_text};
use crate::error::{Error, Unsupported};

/// Longest text that is looked at; what is longer than metadata may be is left out.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Templates that have names of their own.
const TEMPLATES: &str = "additional_chat_templates";
/// How queries and keys are turned: by halves, as in the Hub's files.
const ROPE_BY_HALVES: u32 = 2;

/// The metadata as JSON. A text that makes them too long is left out, and named in `lost`.
///
/// # Errors
/// [`Error::Io`] for a text that cannot be read; [`Unsupported::Cannot`] for one that is not UTF-8, or a configuration that
/// is too long.
pub(super) fn metadata(
    checkpoint: &Checkpoint,
    total_bytes: u64,
    numbers: u64,
    lost: &mut Vec<String>,
) -> Result<Vec<u8>, Error> {
    let mut map = facts(checkpoint, total_bytes, numbers);
    for (key, name) in TEXT_KEYS {
        if !checkpoint.texts.has(name) {
            continue;
        }
        let path = checkpoint.texts.path(name);
        let read = checkpoint.texts.read(name, MAX_TEXT_BYTES);
        let read = read.map_err(|cause| Error::io("read", &path, cause))?;
        let read =
            read.map(|bytes| if name == CONFIG { plain(bytes.into_owned()).into() } else { bytes });
        let text = match read {
            Ok(bytes) => Some(String::from_utf8(bytes.into_owned()).map_err(|_| {
                let what = format!("{}, which is not UTF-8", path.display());
                Unsupported::Cannot { format: FORMAT, what }
            })?),
            Err(_) => None,
        };
        // As people like to read it, JSON is twice as long as it has to be.
        let text = text.map(|text| match text.len() > MAX_METADATA_BYTES as usize / 2 {
            true => compact(text),
            false => text,
        });
        let fits = text.as_ref().is_some_and(|text| text.len() <= MAX_METADATA_BYTES as usize);
        map.extend(text.filter(|_| fits).map(|text| (key.to_owned(), text.into())));
        if !map.contains_key(key) || json(&map).len() > MAX_METADATA_BYTES as usize {
            map.shift_remove(key);
            lost.push(format!(
                "{name} is left out, as it is longer than the metadata of an APR file may be: keep it for whoever runs the model"
            ));
        }
    }
    match checkpoint.texts.names_in(TEMPLATES).len() {
        0 => {}
        1 => lost.push(format!("the template in {TEMPLATES} is left out")),
        count => lost.push(format!("the {count} templates in {TEMPLATES} are left out")),
    }
    let json = json(&map);
    match json.len() > MAX_METADATA_BYTES as usize {
        true => {
            Err(Unsupported::Cannot { format: FORMAT, what: "so much of a model".into() }.into())
        }
        false => Ok(json),
    }
}

/// A configuration that says of no single module how it is packed, as nothing is here; what is no JSON as it is.
fn plain(config: Vec<u8>) -> Vec<u8> {
    if let Ok(Value::Object(mut map)) = serde_json::from_slice(&config)
        && forget_packed_modules(&mut map)
    {
        return to_text(&map);
    }
    config
}

/// The same JSON without what is between its words; what is no JSON stays as it is, as it may be a template.
fn compact(mut text: String) -> String {
    if serde_json::from_str::<IgnoredAny>(&text).is_err() {
        return text;
    }
    let (mut in_string, mut is_escaped) = (false, false);
    text.retain(|letter| {
        let stays = in_string || !matches!(letter, ' ' | '\n' | '\r' | '\t');
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        stays
    });
    text
}

fn json(map: &Map<String, Value>) -> Vec<u8> {
    serde_json::to_vec(map).expect("texts and numbers are JSON")
}

/// The format's own keys.
fn facts(checkpoint: &Checkpoint, total_bytes: u64, numbers: u64) -> Map<String, Value> {
    let spec = &checkpoint.config;
    let ops = || spec.layers.iter().flat_map(LayerSpec::ops);
    let attention = ops().find_map(|op| if let Op::Attention(it) = op { Some(it) } else { None });
    let mlp = ops().find_map(|op| if let Op::Mlp(it) = op { Some(it) } else { None });
    let experts = ops().find_map(|op| if let Op::Experts(it) = op { Some(it) } else { None });
    let rope = spec.rotations.first().map(|rotation| &rotation.rope);
    let all = json!({
        "model_type": spec.architecture,
        "license": null,
        "data_source": null,
        "data_license": null,
        "total_size": total_bytes,
        "param_count": numbers,
        "name": checkpoint.location.name,
        "hf_architecture": spec.architecture,
        "hidden_size": spec.hidden_size,
        "num_layers": spec.layers.len(),
        "num_heads": attention.map(|it| it.heads),
        "num_kv_heads": attention.map(|it| it.kv_heads),
        "head_dim": attention.map(|it| it.head_dim),
        "vocab_size": spec.vocab_size,
        "intermediate_size": mlp.map(|it| it.inner_size),
        "num_experts": experts.map(|it| it.count),
        "num_experts_per_tok": experts.map(|it| it.chosen),
        "moe_intermediate_size": experts.map(|it| it.expert.inner_size),
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.final_norm.eps,
        "rope_theta": rope.map(|it| it.theta),
        "rope_type": ROPE_BY_HALVES,
    });
    let Value::Object(mut map) = all else { unreachable!("it was just made one") };
    // These must be there, whatever they say; what else is not known is not said.
    let must = ["license", "data_source", "data_license"];
    map.retain(|key, value| !value.is_null() || must.contains(&key.as_str()));
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_without_what_is_between_its_words() {
        let value = json!({"a b": [1, " \" \\", null, "\n\t x"], "\\": {"c": 1.5}});
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(compact(pretty), value.to_string());
        let template = "{% if a %} b {% endif %}";
        assert_eq!(compact(template.into()), template);
    }
}
