//! Pieces of bytes: merges, and what is done to text before.

use serde_json::Value;

use super::file::Merge;
use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// The letter that stands for a space among those that stand for bytes.
const SPACE: char = 'Ġ';

/// Merges as lines of two pieces with a space between.
pub(super) fn merges(merges: Vec<Merge>) -> Vec<String> {
    let line = |merge: Merge| match merge {
        Merge::Text(text) => text,
        Merge::Pair(left, right) => {
            let [left, right] = [left, right].map(|it| match it.contains(' ') {
                true => it.replace(' ', SPACE.encode_utf8(&mut [0; 4])),
                false => it,
            });
            format!("{left} {right}")
        }
    };
    merges.into_iter().map(line).collect()
}

/// Checks that text is not changed before it is split in a way that matters; what matters little goes to `lost`.
///
/// # Errors
/// [`Unsupported::Cannot`]
pub(super) fn check_normalizer(
    normalizer: &Value,
    lost: &mut Vec<String>,
) -> Result<(), Unsupported> {
    match normalizer.get("type").and_then(Value::as_str) {
        None => Ok(()),
        Some("Sequence") => {
            let steps = normalizer.get("normalizers").and_then(Value::as_array);
            steps.into_iter().flatten().try_for_each(|step| check_normalizer(step, lost))
        }
        Some("NFC") => {
            lost.push("text is brought into the form NFC, which GGUF cannot say: tokens of letters with separate accents differ".into());
            Ok(())
        }
        Some(other) => {
            let what = format!("a tokenizer that changes text by {other:?}");
            Err(Unsupported::Cannot { format: FORMAT, what })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_are_lines_in_which_only_one_space_is() {
        let json = r#"[["a","b"],[" ","c d"],"x y"]"#;
        let read: Vec<Merge> = serde_json::from_str(json).unwrap();
        assert_eq!(read[2].pair(), ("x", "y"));
        assert_eq!(Merge::Text("  y".into()).pair(), (" ", "y"));
        assert_eq!(Merge::Text("é".into()).pair(), ("é", ""));
        assert_eq!(merges(read), ["a b", "Ġ cĠd", "x y"]);
    }

    #[test]
    fn what_changes_text_is_said_or_refused() {
        let mut lost = Vec::new();
        check_normalizer(&Value::Null, &mut lost).unwrap();
        assert!(lost.is_empty());
        let nfc = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]});
        check_normalizer(&nfc, &mut lost).unwrap();
        assert_eq!(lost.len(), 1);
        let error = check_normalizer(&json!({"type": "Lowercase"}), &mut lost).unwrap_err();
        assert!(error.to_string().contains("Lowercase"), "{error}");
    }
}
