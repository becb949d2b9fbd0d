//! The text side of a model in an APR file.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::error::AprError;
use super::tokenizer::{VOCABULARY_KEY, tokenizer};

/// Where the configuration is kept as it lies on the Hub.
pub(super) const CONFIG_KEY: &str = "huggingface.config_json";
const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Keys under which a file has the texts of the Hub's files, whole, and the names of these files. They are not of the format,
/// whose own keys say less: not how a text is cut before words are looked up, nor most of a configuration.
pub const TEXT_KEYS: [(&str, &str); 7] = [
    (CONFIG_KEY, "config.json"),
    ("huggingface.tokenizer_json", TOKENIZER),
    ("huggingface.tokenizer_config_json", TOKENIZER_CONFIG),
    ("huggingface.generation_config_json", "generation_config.json"),
    ("huggingface.chat_template_jinja", TEMPLATE),
    ("huggingface.chat_template_json", "chat_template.json"),
    ("huggingface.special_tokens_map_json", "special_tokens_map.json"),
];

/// The texts, by the names of their files, and what is missing of them, as sentences.
///
/// # Errors
/// [`AprError::WrongType`] if what must be a text is something else.
pub(super) fn texts(
    metadata: &Map<String, Value>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<String, Vec<u8>>, AprError> {
    let text = |key: &'static str| match metadata.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone().into_bytes())),
        Some(_) => Err(AprError::WrongType { key, expected: "a string" }),
    };
    let mut texts = BTreeMap::new();
    for (key, name) in TEXT_KEYS {
        texts.extend(text(key)?.map(|text| (name.to_owned(), text)));
    }
    if !texts.contains_key(TOKENIZER_CONFIG) {
        if let Some(template) = text("chat_template")? {
            texts.entry(TEMPLATE.to_owned()).or_insert(template);
        }
        if let Some(Value::Object(special)) = metadata.get("special_tokens") {
            let given = special.iter().filter(|(_, token)| token.is_string());
            let given: Map<_, _> = given.map(|(key, token)| (key.clone(), token.clone())).collect();
            texts.insert(TOKENIZER_CONFIG.to_owned(), json!(given).to_string().into_bytes());
        }
    }
    if !texts.contains_key(TOKENIZER) && metadata.contains_key(VOCABULARY_KEY) {
        let made = tokenizer(metadata);
        warnings.push(match made {
            Some(_) => {
                "the file does not say how text is cut before words are looked up; it is cut as GPT-2 does, which may give other tokens than the model knows"
            }
            None => "the file's vocabulary is not one of byte-level words and merges; there is no tokenizer",
        }.to_owned());
        texts.extend(made.map(|made| (TOKENIZER.to_owned(), made)));
    }
    Ok(texts)
}
