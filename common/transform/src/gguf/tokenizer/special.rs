//! Tokens with a role of their own, and whether a text gets one.

use std::collections::{BTreeMap, HashMap};

use cake_checkpoint::container::gguf::ENDS;
use cake_checkpoint::{Checkpoint, TextFiles};
use serde_json::Value as Json;

use super::file::{Added, TokenizerFile};
use crate::error::{Error, Unsupported};
use crate::gguf::writer::Value;
use crate::gguf::{FORMAT, texts};

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

/// `tokenizer_config.json`, and what is said of special tokens beside it.
pub(super) struct TokenizerConfig {
    /// Null if it is not there.
    pub(super) main: Json,
    map: Json,
    /// Tokens that `tokenizer.json` need not have.
    pub(super) added_tokens: Vec<Added>,
}

impl TokenizerConfig {
    /// Reads both; neither need be there.
    ///
    /// # Errors
    /// [`Error::Text`] or [`Error::Io`].
    pub(super) fn read(texts: &TextFiles) -> Result<TokenizerConfig, Error> {
        let main = texts::json(texts, CONFIG)?;
        let map = texts::json(texts, MAP)?;
        let added = main.get("added_tokens_decoder").and_then(Json::as_object);
        let added_tokens = added.into_iter().flatten().filter_map(|(id, value)| {
            let mut token: Added = serde_json::from_value(value.clone()).ok()?;
            token.id = id.parse().ok()?;
            Some(token)
        });
        let mut added_tokens: Vec<Added> = added_tokens.collect();
        added_tokens.sort_by_key(|token| token.id);
        Ok(TokenizerConfig { main, map, added_tokens })
    }

    /// The text of the token with that role.
    fn token(&self, role: &str) -> Option<&str> {
        [&self.main, &self.map].into_iter().find_map(|it| {
            let value = it.get(role)?;
            value.as_str().or_else(|| value.get("content")?.as_str())
        })
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.main.get(key).and_then(Json::as_bool)
    }
}

/// Checks what llama.cpp takes for granted.
///
/// # Errors
/// [`Unsupported::Cannot`] for a token without a text.
pub(super) fn check_known(tokens: &[String]) -> Result<(), Unsupported> {
    match tokens.iter().position(String::is_empty) {
        Some(id) => Err(Unsupported::Cannot {
            format: FORMAT,
            what: format!("that token {id} has no text"),
        }),
        None => Ok(()),
    }
}

/// Ids of tokens with a role, and whether a text begins or ends with one.
pub(super) fn keys(
    checkpoint: &Checkpoint,
    config: &TokenizerConfig,
    file: &TokenizerFile,
    unknown: Option<&str>,
    ids: &HashMap<String, u32>,
    lost: &mut Vec<String>,
) -> Vec<(String, Value)> {
    let rows = checkpoint.config.vocab_size;
    let id_of = |role: &str| config.token(role).and_then(|text| ids.get(text)).copied();
    let in_rows = |id: &u32| (*id as usize) < rows;
    let stops = checkpoint.stop_token_ids();
    let bos = id_of("bos_token").or(checkpoint.config.bos_token_id.filter(in_rows));
    let eos = id_of("eos_token").or(stops.iter().copied().find(in_rows));
    let unknown = unknown.and_then(|text| ids.get(text).copied()).or_else(|| id_of("unk_token"));
    let mut keys = Vec::new();
    let mut put = |key: &str, value| keys.push((format!("tokenizer.ggml.{key}"), value));
    let roles = [
        ("bos_token_id", bos),
        ("eos_token_id", eos),
        ("unknown_token_id", unknown),
        ("padding_token_id", id_of("pad_token")),
    ];
    for (key, id) in roles {
        if let Some(id) = id {
            put(key, Value::U32(id));
        }
    }
    let texts: BTreeMap<u32, &str> = ids.iter().map(|(text, id)| (*id, text.as_str())).collect();
    let is_known = |id: &u32| texts.get(id).is_some_and(|text| ENDS.contains(text));
    let others = stops.iter().filter(|id| Some(**id) != eos && in_rows(id) && !is_known(id));
    for (index, id) in others.enumerate() {
        match index {
            0 => put("eot_token_id", Value::U32(*id)),
            1 => put("eom_token_id", Value::U32(*id)),
            _ => lost.push(format!("token {id} ends an answer, too; GGUF has no key left for it")),
        }
    }
    let [begins, ends] = added_by(&file.post_processor);
    let said = |flag: &str, role: &str, by: Option<&str>, id: Option<u32>| {
        let is_own = by.is_some()
            && (by == config.token(role) || by.and_then(|it| ids.get(it).copied()) == id);
        config.flag(flag).unwrap_or(is_own) && id.is_some()
    };
    put("add_bos_token", Value::Bool(said("add_bos_token", "bos_token", begins, bos)));
    put("add_eos_token", Value::Bool(said("add_eos_token", "eos_token", ends, eos)));
    keys
}

/// The tokens that a post-processor puts before and behind a text.
fn added_by(post_processor: &Json) -> [Option<&str>; 2] {
    let steps = post_processor.get("processors").and_then(Json::as_array);
    let all = steps.map_or(std::slice::from_ref(post_processor), Vec::as_slice);
    let template = all.iter().find_map(|step| step.get("single")?.as_array());
    match template.map(Vec::as_slice) {
        Some(pieces) => [special(pieces.first()), special(pieces.last())],
        None => [None, None],
    }
}

/// The token that a piece of a template is, if it is one.
fn special(piece: Option<&Json>) -> Option<&str> {
    piece?.get("SpecialToken")?.get("id")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_text_gets_is_read_off_the_template() {
        let text = json!({"Sequence": {"id": "A"}});
        let bos = json!({"SpecialToken": {"id": "<s>"}});
        let single = json!({"type": "TemplateProcessing", "single": [bos, text]});
        assert_eq!(added_by(&single), [Some("<s>"), None]);
        let all = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, single]});
        assert_eq!(added_by(&all), [Some("<s>"), None]);
        assert_eq!(
            added_by(&json!({"type": "TemplateProcessing", "single": [text]})),
            [None, None]
        );
        assert_eq!(added_by(&Json::Null), [None, None]);
    }
}
