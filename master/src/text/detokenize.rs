//! Turning tokens into text one at a time, as they are made.

use super::{Error, Text};

/// Tokens of a text before that are looked at: a decoder looks at the one before at most, which may be without text.
const CONTEXT_TOKENS: usize = 8;

/// Joins tokens to text as they come; every piece it gives is final.
///
/// A character whose bytes are spread over several tokens comes out whole, with the token that
/// completes it. All pieces together are [`Text::decode`] of all ids.
///
/// ```text
/// window:  [ tokens whose text was shown | tokens since the last complete character ]
/// decoded:   shown ·····················   certain ·········  perhaps half a character
/// ```
///
/// Only the window is decoded, so a long answer does not get slower. Its shown tokens are there
/// because decoders treat the first token of a text differently (they drop its leading space).
pub struct Detokenizer<'a> {
    text: &'a Text,
    window: Vec<u32>,
    /// How many tokens of the window end at the last complete character.
    complete: usize,
    /// The beginning of the decoded window that was given out.
    shown: String,
}

impl<'a> Detokenizer<'a> {
    /// Begins a text made of `text`'s tokens.
    pub fn new(text: &'a Text) -> Detokenizer<'a> {
        Detokenizer { text, window: Vec::new(), complete: 0, shown: String::new() }
    }

    /// What [`after`](Self::after) looks at of a text before.
    pub fn tail(ids: &[u32]) -> &[u32] {
        &ids[ids.len().saturating_sub(CONTEXT_TOKENS)..]
    }

    /// Goes on with a text that ends with these tokens: nothing of them is given again, and what follows is not the first
    /// of a text. If they end within a character, or might, it is.
    pub fn after(text: &'a Text, ids: &[u32]) -> Detokenizer<'a> {
        let mut window = Self::tail(ids).to_vec();
        let last = window.iter().rev().find_map(|id| text.visible_token(*id));
        let shown = text.decode(&window).unwrap_or_default();
        let is_byte = last.is_none_or(|token| text.byte_fallback && looks_like_a_byte(&token));
        if is_byte || shown.ends_with(char::REPLACEMENT_CHARACTER) {
            return Self::new(text);
        }
        window.retain(|id| text.visible_token(*id).is_some());
        Detokenizer { text, complete: window.len(), window, shown }
    }

    /// Takes the next token and gives the text that is now certain, often none or one word.
    ///
    /// Special tokens and ids the tokenizer does not know have no text.
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer fails.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        let Some(token) = self.text.visible_token(id) else {
            return Ok(String::new());
        };
        self.window.push(id);
        if self.text.byte_fallback && looks_like_a_byte(&token) {
            return Ok(String::new()); // Later bytes of the same run can still change how it is read.
        }
        let decoded = self.text.decode(&self.window)?;
        // Bytes that begin a character, but do not end it, are shown as one replacement character.
        let certain = decoded.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&decoded);
        let Some(fresh) = certain.strip_prefix(self.shown.as_str()).map(str::to_owned) else {
            return Ok(String::new());
        };
        if certain.len() < decoded.len() {
            self.shown.push_str(&fresh);
        } else {
            self.advance(decoded)?;
        }
        Ok(fresh)
    }

    /// Ends the text: what was held back, with replacement characters for what stayed incomplete.
    /// The next token begins a new text.
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer fails.
    pub fn finish(&mut self) -> Result<String, Error> {
        let decoded = self.text.decode(&self.window)?;
        let rest = decoded.strip_prefix(self.shown.as_str()).unwrap_or_default().to_owned();
        *self = Detokenizer::new(self.text);
        Ok(rest)
    }

    /// All of the window was shown as `decoded`: keep only what the next token needs as context.
    fn advance(&mut self, decoded: String) -> Result<(), Error> {
        self.shown = decoded;
        let context = self.text.decode(&self.window[self.complete..])?;
        // Tokens that show nothing as the first of a text do not protect the next from being first.
        if !context.is_empty() {
            self.window.drain(..self.complete);
            self.complete = self.window.len();
            self.shown = context;
        }
        Ok(())
    }
}

/// Whether the byte-fallback decoder reads `token` as a byte; it takes all `<0xHH>` for that.
fn looks_like_a_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::samples;
    use proptest::prelude::*;

    fn pieces(text: &Text, ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(text);
        let mut pieces: Vec<String> =
            ids.iter().map(|&id| detokenizer.push(id).expect("decodes")).collect();
        pieces.push(detokenizer.finish().expect("decodes"));
        pieces
    }

    #[test]
    fn a_text_that_is_gone_on_with_keeps_the_space_between_words() {
        let (demo, tiny) = (samples::demo(), samples::byte_fallback());
        let words = ["▁b", "▁a", "b", "▁b"].map(|token| tiny.token_id(token).expect("known"));
        let sun = demo.encode("the sun is there", false).expect("encodes");
        for (text, ids, whole) in [(demo, &sun[..], "the sun is there"), (tiny, &words, "b ab b")] {
            for cut in 1..ids.len() {
                let before = text.decode(&ids[..cut]).expect("decodes");
                let mut detokenizer = Detokenizer::after(text, &ids[..cut]);
                let rest: String =
                    ids[cut..].iter().map(|&id| detokenizer.push(id).expect("decodes")).collect();
                let rest = rest + &detokenizer.finish().expect("decodes");
                assert_eq!(before + &rest, whole, "{cut} of {ids:?}");
            }
        }
    }

    #[test]
    fn a_character_over_several_tokens_comes_out_whole() {
        let text = samples::demo();
        let ids = text.encode("né 🦉!", false).expect("encodes");
        assert!(ids.len() > 6, "the demo vocabulary has no owl: {ids:?}");
        let pieces = pieces(text, &ids);
        assert_eq!(pieces.concat(), "né 🦉!");
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        assert!(pieces.iter().any(|piece| piece.contains('🦉')), "{pieces:?}");
    }

    #[test]
    fn an_incomplete_character_is_given_at_the_end() {
        let text = samples::demo();
        let ids = text.encode("a🦉", false).expect("encodes");
        let pieces = pieces(text, &ids[..ids.len() - 1]);
        assert_eq!(pieces.first().map(String::as_str), Some("a"));
        assert_eq!(pieces.last().map(String::as_str), Some("\u{FFFD}"));
    }

    #[test]
    fn text_before_an_incomplete_character_is_not_held_back() {
        let text = samples::demo();
        let owl = text.encode("🦉", false).expect("encodes");
        let letter = text.encode("b", false).expect("encodes");
        let ids = [&owl[..1], &owl[..1], &letter[..]].concat();
        assert_eq!(pieces(text, &ids), ["", "\u{FFFD}", "\u{FFFD}b", ""]);
    }

    #[test]
    fn special_and_unknown_tokens_have_no_text() {
        let text = samples::demo();
        let end = text.eos_id().expect("has an end token");
        let word = text.encode("owl", false).expect("encodes");
        let ids = [&[end, u32::MAX], &word[..], &[end]].concat();
        assert_eq!(pieces(text, &ids).concat(), "owl");
    }

    #[test]
    fn a_new_text_begins_after_the_end_of_the_last() {
        let text = samples::byte_fallback();
        let ids = text.encode("ab", false).expect("encodes");
        let mut detokenizer = Detokenizer::new(text);
        for _ in 0..2 {
            let mut joined = String::new();
            for &id in &ids {
                joined += &detokenizer.push(id).expect("decodes");
            }
            joined += &detokenizer.finish().expect("decodes");
            assert_eq!(joined, "ab");
        }
    }

    #[test]
    fn a_run_of_byte_tokens_waits_for_its_end() {
        let text = samples::byte_fallback();
        let id = |token: &str| text.token_id(token).expect("in the vocabulary");
        let accent = [id("▁"), id("a"), id("<0xC3>"), id("<0xA9>"), id("b"), id("▁")];
        assert_eq!(pieces(text, &accent), ["", "a", "", "", "éb", " ", ""]);
        // One byte that fits nowhere makes the decoder give up on the whole run.
        let broken = [id("a"), id("<0xC3>"), id("<0xA9>"), id("<0xC3>"), id("b")];
        assert_eq!(pieces(text, &broken), ["a", "", "", "", "\u{FFFD}\u{FFFD}\u{FFFD}b", ""]);
    }

    #[test]
    fn only_the_first_token_loses_its_space() {
        let text = samples::byte_fallback();
        let space = text.token_id("▁").expect("in the vocabulary");
        let word = text.token_id("▁b").expect("in the vocabulary");
        assert_eq!(pieces(text, &[space, space, word, word]).concat(), "  b b");
    }

    #[test]
    fn a_long_text_keeps_a_short_window() {
        let text = samples::demo();
        let ids = text.encode(&"Every day Max walked to the hill. ".repeat(50), false);
        let mut detokenizer = Detokenizer::new(text);
        for id in ids.expect("encodes") {
            detokenizer.push(id).expect("decodes");
            assert!(detokenizer.window.len() <= 2);
        }
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_whole_text_of_any_bytes(
            ids in prop::collection::vec(0u32..1030, 0..60),
        ) {
            let text = samples::demo();
            prop_assert_eq!(pieces(text, &ids).concat(), text.decode(&ids).expect("decodes"));
        }

        #[test]
        fn pieces_join_to_the_whole_text_with_byte_fallback(
            ids in prop::collection::vec(0u32..20, 0..60),
        ) {
            let text = samples::byte_fallback();
            prop_assert_eq!(pieces(text, &ids).concat(), text.decode(&ids).expect("decodes"));
        }
    }
}
