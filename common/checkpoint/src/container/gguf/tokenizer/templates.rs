//! Chat templates.

use std::collections::BTreeSet;

use super::error::TokenizerError;
use crate::container::gguf::value::Metadata;

/// The template for plain conversations.
const TEMPLATE: &str = "tokenizer.chat_template";
/// The names of the others, each under the key of the first, with a dot and its name.
const NAMES: &str = "tokenizer.chat_templates";

/// Files of all templates that the model has.
///
/// # Errors
/// [`TokenizerError::Value`] for one that is no text.
pub(super) fn texts(metadata: &Metadata) -> Result<Vec<(String, Vec<u8>)>, TokenizerError> {
    let mut texts = Vec::new();
    let text =
        |key: &str| Ok::<_, TokenizerError>(metadata.text(key)?.cloned().map(String::into_bytes));
    texts.extend(text(TEMPLATE)?.map(|text| ("chat_template.jinja".to_owned(), text)));
    // A name may be there several times, and its template is one.
    let names: BTreeSet<_> = metadata.texts(NAMES)?.into_iter().flatten().collect();
    for name in names.into_iter().filter(|name| is_plain(name)) {
        let text = text(&format!("{TEMPLATE}.{name}"))?;
        texts.extend(text.map(|text| (format!("additional_chat_templates/{name}.jinja"), text)));
    }
    Ok(texts)
}

/// Whether a name may be that of a file.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}
