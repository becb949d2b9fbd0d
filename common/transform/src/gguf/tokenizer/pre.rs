//! How text is split before pieces are joined, by the name that llama.cpp has for it.

use std::borrow::Cow;

use cake_checkpoint::container::gguf::{DIGIT, GPT2, SPLITS, Split};
use serde_json::Value;

use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// What llama.cpp takes where no name is given.
const DEFAULT: &str = "default";

/// The name of what `pre_tokenizer` does. `whole`: whether a whole piece that is a token is taken as it is.
///
/// # Errors
/// [`Unsupported::Cannot`] for a way that has no name, unless `guess` says to take the default one.
pub(super) fn of(
    pre_tokenizer: &Value,
    whole: bool,
    guess: bool,
    lost: &mut Vec<String>,
) -> Result<&'static str, Unsupported> {
    let mut found = Vec::new();
    let named = match patterns(pre_tokenizer, &mut found) {
        Ok(()) => {
            let same = |split: &&Split| split.patterns.iter().eq(&found);
            let ways = || SPLITS.iter().filter(same);
            let way = ways().find(|split| split.whole == whole).or_else(|| ways().next());
            way.ok_or_else(|| format!("a tokenizer that splits text by {found:?}"))
        }
        Err(what) => Err(what),
    };
    let split = match named {
        Ok(split) => split,
        Err(what) if guess => {
            lost.push(format!(
                "{what} is written as one that splits it in the default way: its tokens differ"
            ));
            return Ok(DEFAULT);
        }
        Err(what) => return Err(Unsupported::Cannot { format: FORMAT, what }),
    };
    let name = split.names[0];
    if split.whole != whole {
        let does = if whole { "does not take" } else { "takes" };
        lost.push(format!(
            "llama.cpp {does} words that are tokens as they are, for {name:?}: tokens may differ that no merges make"
        ));
    }
    Ok(name)
}

/// Appends the patterns by which text is split, one after the other.
///
/// # Errors
/// What else is done to it.
fn patterns<'a>(value: &'a Value, found: &mut Vec<Cow<'a, str>>) -> Result<(), String> {
    let flag = |key: &str, default| value.get(key).and_then(Value::as_bool).unwrap_or(default);
    match value.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let steps = value.get("pretokenizers").and_then(Value::as_array);
            steps.into_iter().flatten().try_for_each(|step| patterns(step, found))
        }
        Some("ByteLevel") if flag("add_prefix_space", true) => {
            Err("a tokenizer that puts a space before a text".into())
        }
        Some("ByteLevel") => {
            if flag("use_regex", true) {
                found.push(Cow::Borrowed(GPT2));
            }
            Ok(())
        }
        Some("Digits") => {
            let each = flag("individual_digits", false);
            found.push(Cow::Borrowed(if each { DIGIT } else { r"\p{N}+" }));
            Ok(())
        }
        Some("Split") => {
            let pattern =
                value.get("pattern").and_then(|it| it.get("Regex")).and_then(Value::as_str);
            let isolated = value.get("behavior").and_then(Value::as_str) == Some("Isolated");
            let pattern = pattern.filter(|_| isolated && !flag("invert", false));
            let pattern =
                pattern.ok_or_else(|| format!("a tokenizer that splits text by {value}"))?;
            // Some files have the characters for which others have their escapes, or the other way round.
            found.push(match pattern.contains(['\r', '\n', '"']) {
                true => {
                    let escaped = pattern.replace('\r', r"\r").replace('\n', r"\n");
                    Cow::Owned(escaped.replace(r#"\""#, "\""))
                }
                false => Cow::Borrowed(pattern),
            });
            Ok(())
        }
        Some(other) => Err(format!("a tokenizer that splits text by {other:?}")),
        None => Err("a tokenizer that does not split text".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cut(patterns: &[&str]) -> Value {
        let split = |it: &&str| json!({"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<Value> = patterns.iter().map(split).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }

    #[test]
    fn every_way_to_split_has_its_name() {
        for split in SPLITS {
            let same = |it: &&Split| it.patterns == split.patterns && it.whole == split.whole;
            let own = SPLITS.iter().find(same).unwrap();
            let mut lost = Vec::new();
            let found = of(&cut(split.patterns), split.whole, false, &mut lost).unwrap();
            assert_eq!((found, lost.len()), (own.names[0], 0));
            if !SPLITS.iter().any(|it| it.patterns == split.patterns && it.whole != split.whole) {
                let found = of(&cut(split.patterns), !split.whole, false, &mut lost).unwrap();
                assert_eq!((found, lost.len()), (own.names[0], 1));
            }
        }
        let merged = of(&cut(SPLITS[0].patterns), false, false, &mut Vec::new());
        assert_eq!(merged, Ok("smaug-bpe"));
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
        assert_eq!(of(&byte_level, false, false, &mut Vec::new()), Ok("gpt-2"));
        let digits = json!({"type": "Digits", "individual_digits": true});
        let smollm = json!({"type": "Sequence", "pretokenizers": [digits, byte_level]});
        assert_eq!(of(&smollm, false, false, &mut Vec::new()), Ok("smollm"));
        let qwen2 = SPLITS.iter().find(|it| it.names[0] == "qwen2").unwrap();
        let escaped = qwen2.patterns[0].replace(r"\r", "\r").replace(r"\n", "\n");
        assert_eq!(of(&cut(&[&escaped]), false, false, &mut Vec::new()), Ok("qwen2"));
    }

    #[test]
    fn a_way_without_a_name_is_refused_or_guessed() {
        for value in [
            cut(&["x+"]),
            json!({"type": "ByteLevel", "add_prefix_space": true}),
            json!({"type": "Whitespace"}),
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated"}),
            Value::Null,
        ] {
            let refused = of(&value, false, false, &mut Vec::new());
            assert!(matches!(refused, Err(Unsupported::Cannot { .. })), "{value}");
            let mut lost = Vec::new();
            assert_eq!(of(&value, false, true, &mut lost), Ok("default"));
            assert_eq!(lost.len(), 1);
        }
    }
}
