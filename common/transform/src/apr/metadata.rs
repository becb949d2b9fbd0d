//! What an APR file says of its model: the format's own keys, and the Hub's texts under keys of ours.

use cake_checkpoint::container::apr::{MAX_METADATA_BYTES, TEXT_KEYS};
use cake_checkpoint::{Checkpoint, LayerSpec, Op};
use serde_json::{Map, Value, json};

use super::FORMAT;
use crate::error::{Error, Unsupported};

/// Longest text that is looked at; what is longer than metadata may be is left out.
const MAX_TEXT_BYTES: u64 = 1 << 28;
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
        let text = match read {
            Ok(bytes) => Some(String::from_utf8(bytes.into_owned()).map_err(|_| {
                let what = format!("{}, which is not UTF-8", path.display());
                Unsupported::Cannot { format: FORMAT, what }
            })?),
            Err(_) => None,
        };
        map.extend(text.map(|text| (key.to_owned(), text.into())));
        if json(&map).len() > MAX_METADATA_BYTES as usize {
            // As people like to read it, JSON is twice as long as it has to be.
            let short = map.get(key).and_then(Value::as_str).and_then(compact);
            map.extend(short.map(|short| (key.to_owned(), short.into())));
        }
        if !map.contains_key(key) || json(&map).len() > MAX_METADATA_BYTES as usize {
            map.shift_remove(key);
            lost.push(format!(
                "{name} is left out, as it is longer than the metadata of an APR file may be: keep it for whoever runs the model"
            ));
        }
    }
    let json = json(&map);
    match json.len() > MAX_METADATA_BYTES as usize {
        true => {
            Err(Unsupported::Cannot { format: FORMAT, what: "so much of a model".into() }.into())
        }
        false => Ok(json),
    }
}

/// The same JSON without what is between its words; `None` if it is none.
fn compact(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    Some(value.to_string())
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
