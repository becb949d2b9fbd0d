//! Tokenizers whose files say which pieces are joined, and in which order.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::error::TokenizerError;
use super::file::{Pairs, Parts, SPACE, replace, split};
use super::limits::MAX_MERGES;
use super::splits::{LINES, Split};
use super::vocabulary::{Vocabulary, check_bytes};
use crate::container::gguf::value::Metadata;

/// Two pieces each, with a space between.
const MERGES: &str = "tokenizer.ggml.merges";

/// What the tokens are made of.
pub(super) enum Alphabet {
    /// Bytes, each written as a letter, as GPT-2 has them; text is cut so.
    Bytes(&'static Split),
    /// Letters, with [`SPACE`] for a space, and bytes where there is none.
    Letters,
}

/// All but the vocabulary.
///
/// # Errors
/// [`TokenizerError`] if merges are malformed, or are of what is no token.
pub(super) fn parts<'a>(
    metadata: &'a Metadata,
    vocabulary: &Vocabulary<'_>,
    alphabet: Alphabet,
) -> Result<Parts<'a>, TokenizerError> {
    let merges = merges(metadata, vocabulary)?;
    Ok(match alphabet {
        Alphabet::Bytes(how) => {
            let cuts = how.patterns.iter().map(|pattern| split(pattern));
            let bytes = json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
            });
            let steps: Vec<Value> = cuts.chain([bytes.clone()]).collect();
            Parts {
                normalizer: Value::Null,
                pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
                decoder: bytes,
                merges,
                renamed: Vec::new(),
                unknown: None,
                byte_fallback: false,
                whole: how.whole,
            }
        }
        Alphabet::Letters => Parts {
            normalizer: replace(" ", SPACE),
            pre_tokenizer: split(LINES),
            decoder: json!({"type": "Sequence", "decoders": [
                replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            ]}),
            merges,
            renamed: Vec::new(),
            unknown: None,
            byte_fallback: true,
            whole: false,
        },
    })
}

/// The pairs of a file.
fn merges<'a>(
    metadata: &'a Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Pairs<'a>, TokenizerError> {
    let lines = Metadata::required(MERGES, metadata.texts(MERGES))?;
    if lines.len() > MAX_MERGES {
        let (found, limit) = (lines.len(), MAX_MERGES);
        return Err(TokenizerError::TooMany { key: MERGES, found, limit });
    }
    check_bytes(MERGES, lines)?;
    let ids = vocabulary.ids()?;
    let pair = |(index, line): (usize, &'a String)| {
        let line = line.as_str();
        let (left, right) =
            pair(line).ok_or_else(|| TokenizerError::NoPair { index, line: line.to_owned() })?;
        for piece in [left, right, &[left, right].concat()] {
            if !ids.contains_key(piece) {
                let (line, piece) = (line.to_owned(), piece.to_owned());
                return Err(TokenizerError::UnknownPiece { index, line, piece });
            }
        }
        Ok((Cow::Borrowed(left), Cow::Borrowed(right)))
    };
    lines.iter().enumerate().map(pair).collect()
}

/// The two pieces of a line: a space at its very start belongs to the first.
fn pair(line: &str) -> Option<(&str, &str)> {
    let second = line.chars().next()?.len_utf8();
    let space = second + line[second..].find(' ')?;
    let (left, right) = (&line[..space], &line[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_the_first_space_behind_a_letter() {
        assert_eq!(pair("a b"), Some(("a", "b")));
        assert_eq!(pair("  b"), Some((" ", "b")));
        assert_eq!(pair("▁ c d"), Some(("▁", "c d")));
        assert_eq!(pair("\n \n\n"), Some(("\n", "\n\n")));
        for line in ["", "ab", " ab", "a "] {
            assert_eq!(pair(line), None, "{line:?}");
        }
    }
}
