//! What a configuration says of how weights are stored, said anew.

use cake_checkpoint::container::safetensors::CONFIG;
use cake_checkpoint::{Affine, FloatType, TextFiles};
use serde_json::{Map, Value, json};

use crate::error::{Error, Unsupported};

/// Longest configuration that is read.
const MAX_BYTES: u64 = 1 << 24;
/// Where a configuration says how matrices are packed; two places with the same.
const PACKED: [&str; 2] = ["quantization", "quantization_config"];
/// Where it says what type numbers have.
const TYPES: [&str; 2] = ["dtype", "torch_dtype"];

/// The configuration, as text to be changed.
pub(super) fn read(texts: &TextFiles) -> Result<Map<String, Value>, Error> {
    let path = texts.path(CONFIG);
    let text = texts.read(CONFIG, MAX_BYTES).map_err(|cause| Error::io("read", &path, cause))?;
    let value = text.ok().and_then(|text| serde_json::from_slice(&text).ok());
    match value {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(Unsupported::Cannot {
            format: "a configuration",
            what: "what this one says".into(),
        }
        .into()),
    }
}

/// Says that all numbers are plain ones of that type.
pub(super) fn say_plain(config: &mut Map<String, Value>, float: FloatType) {
    PACKED.iter().for_each(|key| drop(config.shift_remove(*key)));
    let name = match float {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    };
    match TYPES.iter().find(|key| config.contains_key(**key)) {
        Some(key) => drop(config.insert((*key).to_owned(), name.into())),
        None => drop(config.insert(TYPES[0].to_owned(), name.into())),
    }
}

/// Says that matrices are packed as `format`, but for some `modules`: as another format, or not at all.
pub(super) fn say_packed(
    config: &mut Map<String, Value>,
    format: Affine,
    modules: &[(String, Option<Affine>)],
) {
    let said = |format: Affine| json!({ "group_size": format.group(), "bits": format.bits() });
    let mut packed = said(format);
    for (module, format) in modules {
        packed[module] = format.map_or(Value::Bool(false), said);
    }
    // Programs look in one or the other.
    PACKED.iter().for_each(|key| drop(config.insert((*key).to_owned(), packed.clone())));
}

/// Says in the words of configurations before transformers 5, too, what these say otherwise: how positions are turned, and
/// how many experts there are. Programs that know only those words would refuse, or take what is usual.
pub(super) fn say_in_older_words(config: &mut Map<String, Value>) {
    let none = Map::new();
    let map = |value: Option<&Value>| value.and_then(Value::as_object).unwrap_or(&none).clone();
    let turned = map(config.get("rope_parameters"));
    // By kind of layer, where the kinds differ.
    let in_window = map(turned.get("sliding_attention"));
    let anywhere = match turned.contains_key("full_attention") {
        true => map(turned.get("full_attention")),
        false => turned,
    };
    let of = |parameters: &Map<String, Value>, key: &str| parameters.get(key).cloned();
    let older = [
        ("rope_theta", of(&anywhere, "rope_theta")),
        ("rope_local_base_freq", of(&in_window, "rope_theta")),
        ("partial_rotary_factor", of(&anywhere, "partial_rotary_factor")),
        ("rope_scaling", stretch(anywhere)),
        ("num_experts", of(config, "num_local_experts")),
    ];
    for (key, value) in older {
        let Some(value) = value.filter(|value| !value.is_null()) else { continue };
        if config.get(key).is_none_or(Value::is_null) {
            config.insert(key.to_owned(), value);
        }
    }
}

/// How positions are stretched, by those parameters, in older words; `None` if they are not.
fn stretch(mut parameters: Map<String, Value>) -> Option<Value> {
    let kind = parameters.get("rope_type").filter(|kind| *kind != "default")?.clone();
    ["rope_theta", "partial_rotary_factor"]
        .iter()
        .for_each(|key| drop(parameters.shift_remove(*key)));
    parameters.insert("type".to_owned(), kind);
    Some(parameters.into())
}

/// Says of modules that have another name now what it said of them, of several with one name what it said of the last.
pub(super) fn rename_modules(
    config: &mut Map<String, Value>,
    renamed: impl Fn(&str) -> Option<String>,
) {
    for key in PACKED {
        let Some(Value::Object(modules)) = config.get_mut(key) else { continue };
        let said = std::mem::take(modules).into_iter();
        modules.extend(said.map(|(module, form)| (renamed(&module).unwrap_or(module), form)));
    }
}

/// As the file's text.
pub(super) fn to_text(config: &Map<String, Value>) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(config).expect("it was JSON");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_older_words(config: Value) -> Value {
        let mut config = config.as_object().unwrap().clone();
        say_in_older_words(&mut config);
        config.into()
    }

    fn with(config: &Value, more: Value) -> Value {
        let mut config = config.as_object().unwrap().clone();
        config.extend(more.as_object().unwrap().clone());
        config.into()
    }

    #[test]
    fn programs_that_know_only_older_words_find_them() {
        let plain = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
            "num_local_experts": 8});
        let older = json!({"rope_theta": 5e5, "num_experts": 8});
        assert_eq!(in_older_words(plain.clone()), with(&plain, older));
        let stretched = json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0,
                "partial_rotary_factor": 0.5}, "rope_scaling": null});
        let older = json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5,
            "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}});
        assert_eq!(in_older_words(stretched.clone()), with(&stretched, older));
        let by_kind = json!({"rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}});
        let older = json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 8.0}});
        assert_eq!(in_older_words(by_kind.clone()), with(&by_kind, older));
    }

    #[test]
    fn what_is_said_in_older_words_stays() {
        for config in [
            json!({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}, "num_experts": 4}),
            json!({"rope_parameters": "odd", "num_local_experts": null}),
        ] {
            assert_eq!(in_older_words(config.clone()), config);
        }
    }
}
