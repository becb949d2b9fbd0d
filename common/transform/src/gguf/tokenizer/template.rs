//! Chat templates.

use std::collections::BTreeMap;

use cake_checkpoint::TextFiles;
use serde_json::Value as Json;

use super::special::TokenizerConfig;
use crate::error::Error;
use crate::gguf::texts;
use crate::gguf::writer::Value;

const FILE: &str = "chat_template.jinja";
const OLDER: &str = "chat_template.json";
const FOLDER: &str = "additional_chat_templates";
const ENDING: &str = ".jinja";
const DEFAULT: &str = "default";

/// The keys of all templates that the model has, the one for plain conversations first.
///
/// # Errors
/// [`Error::Text`] or [`Error::Io`].
pub(super) fn keys(
    texts: &TextFiles,
    config: &TokenizerConfig,
) -> Result<Vec<(String, Value)>, Error> {
    // From the weakest source to the strongest; later ones replace what earlier ones said.
    let mut templates = BTreeMap::new();
    let older = texts::json(texts, OLDER)?;
    add(older.get("chat_template"), &mut templates);
    add(config.main.get("chat_template"), &mut templates);
    for name in texts.names_in(FOLDER) {
        if let Some(own) = name.strip_suffix(ENDING)
            && let Some(text) = texts::text(texts, &format!("{FOLDER}/{name}"))?
        {
            templates.insert(own.to_owned(), text);
        }
    }
    if let Some(text) = texts::text(texts, FILE)? {
        templates.insert(DEFAULT.to_owned(), text);
    }
    let key = "tokenizer.chat_template";
    let default = templates.remove(DEFAULT).map(|text| (key.to_owned(), Value::Text(text)));
    let mut keys: Vec<_> = default.into_iter().collect();
    if !templates.is_empty() {
        let names = templates.keys().cloned().collect();
        keys.push((format!("{key}s"), Value::Texts(names)));
    }
    let named = templates.into_iter();
    keys.extend(named.map(|(name, text)| (format!("{key}.{name}"), Value::Text(text))));
    Ok(keys)
}

/// A text, or a list of texts with names.
fn add(value: Option<&Json>, templates: &mut BTreeMap<String, String>) {
    match value {
        Some(Json::String(text)) => {
            templates.insert(DEFAULT.to_owned(), text.clone());
        }
        Some(Json::Array(items)) => templates.extend(items.iter().filter_map(|item| {
            let text = |key: &str| item.get(key)?.as_str().map(str::to_owned);
            Some((text("name")?, text("template")?))
        })),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_template_counts_and_others_keep_their_names() {
        let with = |texts: &[(&str, &str)]| {
            let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).into()));
            let texts = TextFiles::Inside { file: "model.one".into(), texts: texts.collect() };
            keys(&texts, &TokenizerConfig::read(&texts).unwrap()).unwrap()
        };
        let config = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}"#;
        let text = |key: &str, text: &str| (key.to_owned(), Value::Text(text.into()));
        let found = with(&[
            ("tokenizer_config.json", config),
            (FILE, "c"),
            ("additional_chat_templates/tool_use.jinja", "d"),
        ]);
        let names = Value::Texts(vec!["rag".into(), "tool_use".into()]);
        let expected = [
            text("tokenizer.chat_template", "c"),
            ("tokenizer.chat_templates".to_owned(), names),
            text("tokenizer.chat_template.rag", "b"),
            text("tokenizer.chat_template.tool_use", "d"),
        ];
        assert_eq!(found, expected);
        let found = with(&[("tokenizer_config.json", r#"{"chat_template": "a"}"#)]);
        assert_eq!(found, [text("tokenizer.chat_template", "a")]);
        assert_eq!(with(&[]), []);
    }
}
