//! Pieces of letters with bytes where there is none, as SentencePiece has them: scores instead of merges.

use std::collections::HashMap;

use serde_json::Value;

use super::file::Model;
use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// What stands for a space in a piece.
const SPACE: &str = "▁";

/// Scores by id, so that what is joined first has the highest: minus the number of the first merge that makes it. What no
/// merge makes has the lowest.
pub(super) fn scores(model: &Model, rows: usize, lost: &mut Vec<String>) -> Vec<f32> {
    let lowest = -(model.merges.len() as f32);
    let mut scores = vec![lowest; rows];
    let mut last: HashMap<u32, usize> = HashMap::new();
    let mut whole = String::new();
    let mut apart = 0;
    let mut previous = None;
    for (number, merge) in model.merges.iter().enumerate() {
        let (left, right) = merge.pair();
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let Some(&id) = model.vocab.get(&whole) else { continue };
        if last.insert(id, number).is_none() {
            if let Some(score) = scores.get_mut(id as usize) {
                *score = -(number as f32); // Exact: no vocabulary has 2²⁴ merges.
            }
        } else if previous != Some(id) {
            apart += 1; // llama.cpp joins both pairs at the time of the first.
        }
        previous = Some(id);
    }
    if apart > 0 {
        lost.push(format!(
            "{apart} merges make a token that others make much earlier; GGUF has one score for each token: tokens may differ"
        ));
    }
    scores
}

/// Whether a text gets a space in front, by what is done to it before pieces are joined.
///
/// # Errors
/// [`Unsupported::Cannot`] if more is done to it than that, writing spaces in another way, and taking whole tokens out
/// that no merges make, which llama.cpp makes by itself.
pub(super) fn has_prefix(
    normalizer: &Value,
    pre_tokenizer: &Value,
    is_token: impl Fn(&str) -> bool,
) -> Result<bool, Unsupported> {
    let normalized = prefix_of(normalizer, &is_token)?;
    Ok(prefix_of(pre_tokenizer, &is_token)? || normalized)
}

fn prefix_of(value: &Value, is_token: &impl Fn(&str) -> bool) -> Result<bool, Unsupported> {
    let regex = || value.get("pattern")?.get("Regex")?.as_str();
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let pattern = value.get("pattern").and_then(|it| it.get("String")).and_then(Value::as_str);
    match text("type") {
        None => Ok(false),
        Some("Sequence") => {
            let steps = ["normalizers", "pretokenizers"].into_iter().find_map(|it| value.get(it));
            let steps = steps.and_then(Value::as_array);
            let each = steps.into_iter().flatten().map(|step| prefix_of(step, is_token));
            each.collect::<Result<Vec<_>, _>>().map(|all| all.contains(&true))
        }
        Some("Prepend") if text("prepend") == Some(SPACE) => Ok(true),
        Some("Replace") if pattern == Some(" ") && text("content") == Some(SPACE) => Ok(false),
        // Nothing is left to be split at spaces once they are written in another way.
        Some("Split") if pattern == Some(" ") => Ok(false),
        Some("Split")
            if text("behavior") == Some("Isolated")
                && regex().is_some_and(|it| alternatives(it).iter().all(|it| is_token(it))) =>
        {
            Ok(false)
        }
        Some("Metaspace") if text("replacement") == Some(SPACE) => {
            let older = value.get("add_prefix_space").and_then(Value::as_bool);
            Ok(text("prepend_scheme").map_or(older.unwrap_or(true), |scheme| scheme != "never"))
        }
        Some(_) => {
            let what = format!("a tokenizer that changes text by {value}");
            Err(Unsupported::Cannot { format: FORMAT, what })
        }
    }
}

/// Whether a step puts a space before the first word of a text, and not behind a special token.
pub(super) fn is_first_only(step: &Value) -> bool {
    match step {
        Value::Object(map) => map.iter().any(|(key, value)| {
            (key == "prepend_scheme" && value == "first") || is_first_only(value)
        }),
        Value::Array(steps) => steps.iter().any(is_first_only),
        _ => false,
    }
}

/// The texts between the bars of a pattern, each without the escapes of letters in it.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match (letter, texts.last_mut()) {
            ('|', _) => texts.push(String::new()),
            ('\\', Some(text)) => text.extend(letters.next()),
            (letter, Some(text)) => text.push(letter),
            (_, None) => {}
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(vocab: &[&str], merges: Value) -> Model {
        let vocab: HashMap<&str, usize> =
            vocab.iter().enumerate().map(|(id, it)| (*it, id)).collect();
        serde_json::from_value(json!({"vocab": vocab, "merges": merges})).unwrap()
    }

    #[test]
    fn what_is_joined_first_has_the_highest_score() {
        let mut lost = Vec::new();
        let read = model(&["a", "b", "ab", "aba", "c"], json!(["a b", ["ab", "a"], ["a", "ba"]]));
        assert_eq!(scores(&read, 6, &mut lost), [-3.0, -3.0, 0.0, -1.0, -3.0, -3.0]);
        assert!(lost.is_empty());
        let read = model(&["a", "b", "aa", "aaa"], json!([["a", "aa"], ["a", "a"], ["aa", "a"]]));
        assert_eq!(scores(&read, 4, &mut lost), [-3.0, -3.0, -1.0, 0.0]);
        assert_eq!(lost.len(), 1);
    }

    #[test]
    fn a_space_in_front_is_found_wherever_it_is_said() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
        let metaspace =
            |scheme| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme});
        let gemma =
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
        let regex = |it| json!({"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated"});
        let has = |normalizer: &Value, pre: &Value| {
            has_prefix(normalizer, pre, |it| ["\n\n", "a|b"].contains(&it))
        };
        assert_eq!(has(&both, &Value::Null), Ok(true));
        assert_eq!(has(&replace, &gemma), Ok(false));
        assert_eq!(has(&Value::Null, &metaspace("first")), Ok(true));
        assert_eq!(has(&Value::Null, &metaspace("never")), Ok(false));
        assert!(is_first_only(&json!({"type": "Sequence", "pretokenizers": [metaspace("first")]})));
        assert!(!is_first_only(&metaspace("always")) && !is_first_only(&both));
        assert_eq!(has(&both, &regex("\\\n\\\n|a\\|b")), Ok(true));
        assert!(has(&both, &regex("\\d+")).is_err());
        assert!(has(&json!({"type": "Lowercase"}), &Value::Null).is_err());
    }
}
