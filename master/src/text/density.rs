//! How much text one token of a tokenizer may stand for.

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

use super::byte_chars::bytes_of_chars;

/// The most bytes of a text behind one token, white space not counted; none where text may vanish.
///
/// No entry of a vocabulary is shorter than what it stands for: byte-level ones write a byte as a character,
/// SentencePiece a space as three bytes. What a normalizer makes shorter counts as often as it can at most.
/// White space is not counted, as added tokens may swallow any amount of it. Unknown characters must fall to
/// bytes: otherwise they are left out, or a run of any length is one unknown token.
pub(super) fn bytes_per_token(tokenizer: &Tokenizer) -> Option<usize> {
    let vocabulary = tokenizer.get_vocab(true);
    let part = |part: serde_json::Result<Value>| part.unwrap_or(Value::Null);
    let normalizer = part(serde_json::to_value(tokenizer.get_normalizer()));
    let pre_tokenizer = part(serde_json::to_value(tokenizer.get_pre_tokenizer()));
    let byte_fallback = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => model.byte_fallback,
        ModelWrapper::Unigram(model) => model.byte_fallback(),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    };
    let falls_to_bytes = byte_fallback
        && (0..=255u8).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")));
    let is_byte_level = [&normalizer, &pre_tokenizer].iter().any(|part| has(part, "ByteLevel"))
        && bytes_of_chars().keys().all(|c| vocabulary.contains_key(&c.to_string()));
    if !(falls_to_bytes || is_byte_level) || !keeps_all(&pre_tokenizer) {
        return None;
    }
    let longest = vocabulary.keys().map(String::len).max()?;
    Some(longest.saturating_mul(shrinks_by(&normalizer)?))
}

/// Whether a part of the tokenizer is, or has in it, one of that type.
fn has(part: &Value, kind: &str) -> bool {
    let inner = ["normalizers", "pretokenizers"].map(|list| part[list].as_array());
    part["type"] == kind || inner.into_iter().flatten().flatten().any(|part| has(part, kind))
}

/// Whether a pre-tokenizer leaves every character in one of its pieces.
fn keeps_all(part: &Value) -> bool {
    match part["type"].as_str() {
        None => part.is_null(),
        Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts" | "FixedLength") => true,
        Some("Split" | "Punctuation") => part["behavior"] != "Removed",
        Some("Sequence") => {
            part["pretokenizers"].as_array().is_some_and(|all| all.iter().all(keeps_all))
        }
        Some(_) => false,
    }
}

/// How many times fewer bytes a normalizer may leave; none where it may leave nothing.
fn shrinks_by(part: &Value) -> Option<usize> {
    match part["type"].as_str() {
        None => part.is_null().then_some(1),
        Some("Prepend" | "ByteLevel") => Some(1),
        // Three conjoining letters of Hangul become one, the Kelvin sign a k.
        Some("NFC" | "NFD" | "Lowercase") => Some(3),
        // Letters of mathematics, four bytes each, become ASCII.
        Some("NFKC" | "NFKD") => Some(4),
        Some("Replace") => {
            let (from, to) = (part["pattern"]["String"].as_str()?, part["content"].as_str()?);
            (!to.is_empty()).then(|| from.len().div_ceil(to.len()).max(1))
        }
        Some("Sequence") => part["normalizers"]
            .as_array()?
            .iter()
            .try_fold(1usize, |all, part| Some(all.saturating_mul(shrinks_by(part)?))),
        Some(_) => None,
    }
}
