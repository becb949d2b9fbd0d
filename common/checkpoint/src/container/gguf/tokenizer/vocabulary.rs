//! The tokens, and what kind each is.

use std::borrow::Cow;
use std::collections::HashMap;

use super::error::TokenizerError;
use super::limits::{MAX_TEXT_BYTES, MAX_TOKEN_BYTES, MAX_TOKENS};
use crate::container::gguf::value::Metadata;

/// The texts of all tokens, by id.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
/// The kind of each.
const TYPES: &str = "tokenizer.ggml.token_type";

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A piece of text.
    Normal,
    /// What stands for text without a token.
    Unknown,
    /// A sign between texts, such as the end of one.
    Control,
    /// A piece that is found before text is cut.
    UserDefined,
    /// A row that no text becomes.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl Kind {
    /// The kind with that number; llama.cpp takes one without a meaning as a piece of text.
    fn of(number: i64) -> Kind {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// Whether it is found in a text before all else.
    pub(super) fn is_added(self) -> bool {
        matches!(self, Kind::Unknown | Kind::Control | Kind::UserDefined)
    }

    /// Whether it has no text of its own.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Kind::Unknown | Kind::Control)
    }
}

/// All tokens, by id.
pub(super) struct Vocabulary<'a> {
    pub(super) texts: Vec<Cow<'a, str>>,
    pub(super) kinds: Vec<Kind>,
}

impl<'a> Vocabulary<'a> {
    /// Those of a file.
    ///
    /// # Errors
    /// [`TokenizerError`] if there are none, too many or too long ones, or kinds for others.
    pub(super) fn read(metadata: &'a Metadata) -> Result<Vocabulary<'a>, TokenizerError> {
        let texts = Metadata::required(TOKENS, metadata.texts(TOKENS))?;
        if texts.is_empty() || texts.len() > MAX_TOKENS {
            return Err(TokenizerError::Count { found: texts.len() });
        }
        if let Some(id) = texts.iter().position(|text| text.len() > MAX_TOKEN_BYTES) {
            return Err(TokenizerError::LongToken { id, bytes: texts[id].len() });
        }
        check_bytes(TOKENS, texts)?;
        let kinds = match metadata.integers(TYPES)? {
            None => vec![Kind::Normal; texts.len()],
            Some(numbers) => {
                check_length(TYPES, numbers.len(), texts.len())?;
                numbers.iter().map(|number| Kind::of(*number)).collect()
            }
        };
        // A token without a text is none's; the name is llama.cpp's.
        let named = |(id, text): (usize, &'a String)| match text.as_str() {
            "" => Cow::Owned(format!("[EMPTY_{id}]")),
            text => Cow::Borrowed(text),
        };
        Ok(Vocabulary { texts: texts.iter().enumerate().map(named).collect(), kinds })
    }

    /// The id of each text.
    ///
    /// # Errors
    /// [`TokenizerError::Same`] for a text that two tokens have.
    pub(super) fn ids(&self) -> Result<HashMap<&str, u32>, TokenizerError> {
        let mut ids = HashMap::with_capacity(self.texts.len());
        for (text, second) in self.texts.iter().zip(0..) {
            if let Some(first) = ids.insert(&**text, second) {
                return Err(TokenizerError::Same { first, second, text: text.to_string() });
            }
        }
        Ok(ids)
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The text of a token.
    pub(super) fn text(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }

    /// The kind of a token.
    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }
}

/// Checks that a list has an entry for each token.
///
/// # Errors
/// [`TokenizerError::Lengths`]
pub(super) fn check_length(
    key: &'static str,
    found: usize,
    tokens: usize,
) -> Result<(), TokenizerError> {
    if found == tokens { Ok(()) } else { Err(TokenizerError::Lengths { key, found, tokens }) }
}

/// Checks that the texts of a list are not too long together.
///
/// # Errors
/// [`TokenizerError::TooLong`]
pub(super) fn check_bytes(key: &'static str, texts: &[String]) -> Result<(), TokenizerError> {
    let bytes = texts.iter().map(String::len).sum();
    let limit = MAX_TEXT_BYTES;
    if bytes <= limit { Ok(()) } else { Err(TokenizerError::TooLong { key, bytes, limit }) }
}
