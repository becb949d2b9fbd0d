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
