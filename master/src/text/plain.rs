//! Encoding a text in which some control tokens are nothing but text.
//!
//! The library either finds all special tokens or none. This does what its `encode` does, step by step with
//! the library's own parts, but lets pass what begins or lies at places that somebody else wrote: as
//! transformers does with `split_special_tokens`, for those places alone.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::normalizer::Range;
use tokenizers::{AddedToken, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType};
use tokenizers::{PreTokenizedString, PreTokenizer, Result, Token, Tokenizer};

/// Finds added tokens as the library does.
pub(super) struct Finder {
    /// Those that are looked for in the text as it is.
    raw: Matcher,
    /// Those that are looked for once it is normalized.
    normalized: Matcher,
}

/// A stretch of a text, in bytes, and the added token that it is, if it is one.
type Stretch = (Option<u32>, (usize, usize));

impl Finder {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Finder> {
        let mut tokens: Vec<(u32, AddedToken)> =
            tokenizer.get_added_tokens_decoder().into_iter().collect();
        tokens.sort_by_key(|(id, _)| *id);
        let (normalized, raw): (Vec<_>, Vec<_>) =
            tokens.into_iter().partition(|(_, token)| token.normalized);
        let written = |token: &AddedToken| -> Result<String> {
            let mut written = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer().filter(|_| token.normalized) {
                normalizer.normalize(&mut written)?;
            }
            Ok(written.get().to_owned())
        };
        Ok(Finder {
            raw: Matcher::new(raw, written)?,
            normalized: Matcher::new(normalized, written)?,
        })
    }

    /// The ids of `text`, which gets nothing around it. No special token is found where it has one of the
    /// bytes at `places` (in ascending order) in it.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        places: &[usize],
    ) -> Result<Vec<u32>> {
        let mut pieces = self.cut(tokenizer, text, places)?;
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// The special tokens in `text` that have none of the bytes at `places` in them, in order.
    pub(super) fn special(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        places: &[usize],
    ) -> Result<Vec<u32>> {
        let pieces = self.cut(tokenizer, text, places)?;
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let ids =
            pieces.iter().filter_map(|(_, _, tokens)| Some(tokens.iter().flatten().next()?.id));
        Ok(ids.filter(|id| self.raw.has_special(*id) || self.normalized.has_special(*id)).collect())
    }

    /// As `AddedVocabulary::extract_and_normalize` of the library.
    fn cut(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        places: &[usize],
    ) -> Result<PreTokenizedString> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| Ok(self.raw.split(piece, places)))?;
        pieces.split(|_, mut piece| {
            if let Some(normalizer) = tokenizer.get_normalizer() {
                normalizer.normalize(&mut piece)?;
            }
            Ok(self.normalized.split(piece, places))
        })?;
        Ok(pieces)
    }
}

/// Finds some of the added tokens.
struct Matcher {
    tokens: Vec<(u32, AddedToken)>,
    /// Their texts, in the same order; none if there are no tokens.
    automaton: Option<AhoCorasick>,
}

impl Matcher {
    fn new(
        tokens: Vec<(u32, AddedToken)>,
        written: impl Fn(&AddedToken) -> Result<String>,
    ) -> Result<Matcher> {
        let patterns: Vec<String> =
            tokens.iter().map(|(_, token)| written(token)).collect::<Result<_>>()?;
        let automaton = match patterns.is_empty() {
            true => None,
            false => {
                let mut builder = AhoCorasick::builder();
                Some(builder.match_kind(MatchKind::LeftmostLongest).build(patterns)?)
            }
        };
        Ok(Matcher { tokens, automaton })
    }

    fn has_special(&self, id: u32) -> bool {
        self.tokens.iter().any(|(of, token)| *of == id && token.special)
    }

    /// Cuts a piece at the tokens in it.
    fn split(
        &self,
        piece: NormalizedString,
        places: &[usize],
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let (begin, _) = piece.offsets_original();
        let is_plain = |start: usize, end: usize| {
            let of_original = piece.convert_offsets(Range::Normalized(start..end));
            of_original.is_some_and(|range| {
                let at = places.partition_point(|place| *place < begin + range.start);
                places.get(at).is_some_and(|place| *place < begin + range.end)
            })
        };
        let stretches = self.find(piece.get(), is_plain).into_iter();
        let cut = |(id, (start, end)): Stretch| {
            let slice = piece.slice(Range::Normalized(start..end))?;
            let token = id.map(|id| vec![Token::new(id, slice.get().to_owned(), (0, end - start))]);
            Some((slice, token))
        };
        // Matches of whole characters are slices of the piece.
        stretches.filter_map(cut).collect()
    }

    /// As `AddedVocabulary::find_matches` of the library, special tokens being let pass where they are plain.
    fn find(&self, text: &str, is_plain: impl Fn(usize, usize) -> bool) -> Vec<Stretch> {
        let Some(automaton) = self.automaton.as_ref().filter(|_| !text.is_empty()) else {
            return vec![(None, (0, text.len()))];
        };
        let (mut stretches, mut begin) = (Vec::new(), 0);
        for found in automaton.find_iter(text) {
            let (mut start, mut end) = (found.start(), found.end());
            let (id, token) = &self.tokens[found.pattern().as_usize()];
            if token.special && is_plain(start, end) {
                continue;
            }
            let in_word = text[..start].chars().next_back().is_some_and(is_word)
                || text[end..].chars().next().is_some_and(is_word);
            if token.single_word && in_word {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(begin);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if begin < start {
                stretches.push((None, (begin, start)));
            }
            stretches.push((Some(*id), (start, end)));
            begin = end;
        }
        if begin != text.len() {
            stretches.push((None, (begin, text.len())));
        }
        stretches
    }
}

/// Whether a regular expression's `\w` takes it, nearly: marks that join a word count by their letters.
fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;
    use crate::text::samples::{self, Kind, directory_with};

    #[test]
    fn without_places_ids_are_those_of_the_library() {
        for kind in Kind::ALL {
            let directory = directory_with(&[("tokenizer.json", kind.json())]);
            let text = Text::open(directory.path()).expect("opens");
            let finder = Finder::new(&text.tokenizer).expect("made");
            for sample in samples::texts(300, 7, &kind.control()) {
                let expected = text.encode(&sample, false).expect("encodes");
                let ids = finder.encode(&text.tokenizer, &sample, &[]).expect("encodes");
                assert_eq!(ids, expected, "{kind:?}: {sample:?}");
            }
        }
    }

    /// What transformers calls `split_special_tokens`.
    #[test]
    fn where_all_places_are_plain_ids_are_those_of_a_library_that_finds_no_special_token() {
        for kind in Kind::ALL {
            let directory = directory_with(&[("tokenizer.json", kind.json())]);
            let text = Text::open(directory.path()).expect("opens");
            let mut blind = text.tokenizer.clone();
            blind.set_encode_special_tokens(true);
            let finder = Finder::new(&text.tokenizer).expect("made");
            for sample in samples::texts(300, 8, &kind.control()) {
                let expected = blind.encode_fast(sample.as_str(), false).expect("encodes");
                let places: Vec<usize> = (0..sample.len()).collect();
                let ids = finder.encode(&text.tokenizer, &sample, &places).expect("encodes");
                assert_eq!(ids, expected.get_ids(), "{kind:?}: {sample:?}");
            }
        }
    }

    #[test]
    fn ids_are_those_of_transformers() {
        let expected = samples::expected();
        for kind in Kind::ALL {
            let directory = directory_with(&[("tokenizer.json", kind.json())]);
            let text = Text::open(directory.path()).expect("opens");
            let finder = Finder::new(&text.tokenizer).expect("made");
            let cases = expected[kind.name()].as_array().expect("cases");
            assert!(cases.len() >= 100, "{kind:?}");
            for case in cases {
                let sample = case["text"].as_str().expect("a text");
                let found = serde_json::json!(text.encode(sample, false).expect("encodes"));
                assert_eq!(found, case["ids"], "{kind:?}: {sample:?}");
                let places: Vec<usize> = (0..sample.len()).collect();
                let split = finder.encode(&text.tokenizer, sample, &places).expect("encodes");
                assert_eq!(serde_json::json!(split), case["split"], "{kind:?}: {sample:?}");
            }
        }
    }
}
