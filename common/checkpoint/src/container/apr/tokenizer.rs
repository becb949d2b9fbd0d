//! A tokenizer of what an APR file says of one: its words and which of them are joined.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The words of the vocabulary, by id.
pub(super) const VOCABULARY_KEY: &str = "tokenizer.vocabulary";
/// Pairs of words that are joined, the first pair first.
const MERGES_KEY: &str = "tokenizer.merges";
/// The kind of tokenizer.
const KIND_KEY: &str = "tokenizer.model_type";
/// A space, as a byte-level vocabulary writes it: every such vocabulary has the word.
const SPACE: &str = "Ġ";

/// A `tokenizer.json` of byte-level words and merges; `None` if the file has no such ones.
///
/// The format does not say how a text is cut before its pieces are looked up: it is cut as GPT-2 does, where the model may have
/// been trained on other pieces. Ids are turned back to the right text in any case.
pub(super) fn tokenizer(metadata: &Map<String, Value>) -> Option<Vec<u8>> {
    let list = |key: &str| metadata.get(key)?.as_array();
    let (vocabulary, merges) = (list(VOCABULARY_KEY)?, list(MERGES_KEY)?);
    let kind = metadata.get(KIND_KEY).map_or(Some("BPE"), Value::as_str)?;
    if !kind.eq_ignore_ascii_case("bpe") {
        return None;
    }
    let mut words = Map::new();
    for (id, word) in vocabulary.iter().enumerate() {
        words.entry(word.as_str()?).or_insert(json!(id));
    }
    words.get(SPACE)?;
    let special = metadata.get("special_tokens").and_then(Value::as_object);
    let special: BTreeSet<&str> =
        special.into_iter().flat_map(Map::values).filter_map(Value::as_str).collect();
    let is_control = |word: &str| {
        let marked = word.starts_with("<|") && word.ends_with("|>") && word.len() > 4;
        marked || special.contains(word)
    };
    let added = words.iter().filter(|(word, _)| is_control(word));
    let mut added: Vec<Value> = added
        .map(|(word, id)| {
            json!({
                "id": id, "content": word, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false,
            })
        })
        .collect();
    added.sort_by_key(|token| token["id"].as_u64());
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": bytes, "decoder": bytes, "added_tokens": added,
        "model": {"type": "BPE", "vocab": words, "merges": merges},
    });
    Some(tokenizer.to_string().into_bytes())
}
