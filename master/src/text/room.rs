//! How much text may be tokenized at all: a prompt that cannot fit is refused before it costs its tokens.
//!
//! A tokenizer takes some 250 bytes of memory for each byte of text, and microseconds. So a text is
//! refused by its bytes where its tokenizer gives no token to more than so many, or where it is large and has more
//! of them for each token of its room than any text that says something; and where it is long for its room, its
//! tokens are first counted piece by piece, no further than the room goes.

use super::tokenizer::guarded;
use super::{Error, Text};

/// Bytes of the pieces in which long texts are counted.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes for each token of the room up to which a text is tokenized at once: twice what prose has.
const USUAL_BYTES: usize = 8;
/// Bytes for each token of the room beyond which a large text is refused, white space and all: four times as many as in
/// any text but long runs of one character, which some tokenizers have long tokens for.
const MOST_BYTES: usize = 32;
/// Bytes up to which that does not matter: such a text may have any tokens that fit.
const SMALL_BYTES: usize = 1 << 20;
/// Tokens that each cut between two pieces may add to those of the whole.
const CUT_TOKENS: usize = 64;

impl Text {
    /// The most bytes of a text that fits into `room` tokens, white space not counted, if that can be said.
    pub(super) fn most_bytes(&self, room: usize) -> Option<usize> {
        Some(self.bytes_per_token?.saturating_mul(room))
    }

    /// Refuses a text that has no room for certain, or is too large for it in any case, at little cost.
    ///
    /// Pieces of a text have hardly fewer tokens together than the whole: what a cut changes is the words
    /// beside it. An eighth of the room and [`CUT_TOKENS`] for each cut are let pass; the whole decides then.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`]; [`Error::Encode`] if the tokenizer fails.
    pub(super) fn check_room(&self, text: &str, room: usize) -> Result<(), Error> {
        if text.len() <= PIECE_BYTES.min(room) {
            return Ok(());
        }
        let too_long = || Error::PromptTooLong { bytes: text.len(), room };
        if text.len() > SMALL_BYTES.max(room.saturating_mul(MOST_BYTES)) {
            return Err(too_long());
        }
        let solid = || text.split_whitespace().map(str::len).sum::<usize>();
        if self.most_bytes(room).is_some_and(|most| text.len() > most && solid() > most) {
            return Err(too_long());
        }
        if text.len() <= PIECE_BYTES.max(room.saturating_mul(USUAL_BYTES)) {
            return Ok(());
        }
        let (mut rest, mut tokens, mut allowed) = (text, 0, room.saturating_add(room / 8));
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            rest = after;
            let ids = guarded(|| self.tokenizer.encode_fast(piece, false));
            tokens += ids.map_err(|source| Error::Encode { bytes: text.len(), source })?.len();
            allowed = allowed.saturating_add(CUT_TOKENS);
            if tokens > allowed {
                return Err(too_long());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::samples::{self, directory_with};
    use serde_json::{Value, json};

    fn most(change: impl FnOnce(&mut Value)) -> Option<usize> {
        let mut tokenizer = samples::all_bytes_json();
        change(&mut tokenizer);
        let directory = directory_with(&[("tokenizer.json", tokenizer)]);
        Text::open(directory.path()).expect("opens").bytes_per_token
    }

    #[test]
    fn only_tokenizers_that_lose_nothing_have_a_bound() {
        assert_eq!(most(|_| {}), Some(6), "<0x0A> is the longest");
        assert_eq!(most(|json| json["normalizer"] = json!({"type": "NFKC"})), Some(24));
        let both =
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]});
        assert_eq!(most(|json| json["normalizer"] = both), Some(54));
        for normalizer in [
            json!({"type": "StripAccents"}),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
            json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}),
        ] {
            assert_eq!(most(|json| json["normalizer"] = normalizer), None);
        }
        assert_eq!(most(|json| json["pre_tokenizer"] = json!({"type": "Whitespace"})), None);
        assert_eq!(most(|json| json["model"]["byte_fallback"] = json!(false)), None);
        assert!(samples::demo().bytes_per_token.is_some());
        assert_eq!(
            samples::byte_fallback().bytes_per_token,
            None,
            "few bytes are in its vocabulary"
        );
    }

    #[test]
    fn a_text_that_fits_is_never_refused() {
        let texts = [
            "a".repeat(300_000),
            "ab \n".repeat(60_000),
            " ".repeat(300_000),
            "Hello, wörld 🦉! ".repeat(20_000),
        ];
        for tokenizer in [samples::demo(), samples::byte_fallback()] {
            for text in &texts {
                let tokens = tokenizer.encode(text, false).expect("encodes").len();
                tokenizer.check_room(text, tokens).expect("just fits");
            }
        }
    }

    #[test]
    fn a_text_without_room_is_refused_by_its_bytes_or_by_the_first_pieces() {
        let demo = samples::demo();
        let text = "Once upon a time ".repeat(400_000);
        for room in [1, 100, 2_000] {
            let error = demo.encode_within(&text, true, room).expect_err("no room");
            let expected = Error::PromptTooLong { bytes: text.len(), room };
            assert_eq!(error.to_string(), expected.to_string());
        }
        // Large ones with hardly any tokens would be tokenized at once, whatever that takes.
        let blank = " ".repeat(SMALL_BYTES + 1);
        let error = demo.check_room(&blank, SMALL_BYTES / MOST_BYTES).expect_err("no room");
        assert!(matches!(error, Error::PromptTooLong { .. }), "{error}");
        // Nothing is known of how many bytes a token of this one may stand for.
        let error = samples::byte_fallback().check_room(&text, 100).expect_err("no room");
        assert!(matches!(error, Error::PromptTooLong { room: 100, .. }), "{error}");
    }
}
