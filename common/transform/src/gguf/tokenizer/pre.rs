//! How text is split before pieces are joined, by the name that llama.cpp has for it.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// GPT-2's pattern, also what `ByteLevel` splits by itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";

/// A way to split text.
struct Split {
    /// One after the other.
    patterns: &'static [&'static str],
    /// Its name where a whole piece that is a token is still made by merges,
    merged: Option<&'static str>,
    /// and where it is taken as it is.
    whole: Option<&'static str>,
}

/// As llama.cpp quotes the patterns from files of models.
const SPLITS: &[Split] = &[
    Split {
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        merged: Some("smaug-bpe"),
        whole: Some("llama-bpe"),
    },
    Split {
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        merged: Some("qwen2"),
        whole: None,
    },
    Split {
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        merged: Some("qwen35"),
        whole: None,
    },
    Split { patterns: &[GPT2], merged: Some("gpt-2"), whole: None },
    Split { patterns: &[DIGIT, GPT2], merged: Some("smollm"), whole: None },
    Split {
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        merged: Some(DEFAULT),
        whole: None,
    },
    Split {
        patterns: &[
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        merged: Some("deepseek-v3"),
        whole: None,
    },
    Split {
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        merged: None,
        whole: Some("tekken"),
    },
    Split {
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        merged: Some("gpt-4o"),
        whole: None,
    },
];

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
        Ok(()) => SPLITS
            .iter()
            .find(|split| split.patterns.iter().eq(&found))
            .ok_or_else(|| format!("a tokenizer that splits text by {found:?}")),
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
    let (same, other) = match whole {
        true => (split.whole, split.merged),
        false => (split.merged, split.whole),
    };
    match (same, other) {
        (Some(name), _) => Ok(name),
        (None, other) => {
            let name = other.unwrap_or(DEFAULT); // Each has one name at least.
            let does = if whole { "does not take" } else { "takes" };
            lost.push(format!(
                "llama.cpp {does} words that are tokens as they are, for {name:?}: tokens may differ that no merges make"
            ));
            Ok(name)
        }
    }
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

    fn split(patterns: &[&str]) -> Value {
        let split = |it: &&str| json!({"type": "Split", "pattern": {"Regex": it}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<Value> = patterns.iter().map(split).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }

    #[test]
    fn every_way_to_split_has_its_name() {
        for Split { patterns, merged, whole } in SPLITS {
            for (takes_whole, name) in [(false, merged), (true, whole)] {
                let mut lost = Vec::new();
                let found = of(&split(patterns), takes_whole, false, &mut lost).unwrap();
                assert_eq!(Some(found), name.or(*merged).or(*whole));
                assert_eq!(lost.len(), usize::from(name.is_none()), "{lost:?}");
            }
        }
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
        assert_eq!(of(&byte_level, false, false, &mut Vec::new()), Ok("gpt-2"));
        let digits = json!({"type": "Digits", "individual_digits": true});
        let smollm = json!({"type": "Sequence", "pretokenizers": [digits, byte_level]});
        assert_eq!(of(&smollm, false, false, &mut Vec::new()), Ok("smollm"));
        let escaped = SPLITS[1].patterns[0].replace(r"\r", "\r").replace(r"\n", "\n");
        assert_eq!(of(&split(&[&escaped]), false, false, &mut Vec::new()), Ok("qwen2"));
    }

    #[test]
    fn a_way_without_a_name_is_refused_or_guessed() {
        for value in [
            split(&["x+"]),
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
