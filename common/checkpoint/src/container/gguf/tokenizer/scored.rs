//! Tokenizers whose files give each piece a score, as SentencePiece has them.
//!
//! Of a text's letters, always those two neighbours are joined whose joint text is the piece of the highest score, the leftmost
//! first, until no neighbours make a piece; a letter that is no piece then becomes the tokens of its bytes. The library has
//! the same with merges: each way to cut a piece into two pieces is one, in the order of the scores.
//!
//! Two things a list of merges cannot say. Pieces with one score are joined from the left, whichever they are; a list has one
//! of them first (`order`). And a letter that is no piece is joined, too, as in a line break twice, where only `<0x0A>` is a
//! token; letters of one byte are named by the token of their byte then ([`Bare`]), those of more bytes are not joined.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::error::TokenizerError;
use super::file::{Pairs, Parts, SPACE, replace};
use super::limits::{MAX_MERGES, MAX_TEXT_BYTES, MAX_WORK};
use super::roles::Roles;
use super::vocabulary::{Kind, Vocabulary, check_length};
use crate::container::gguf::value::{Metadata, Value as Said};

/// The score of each token.
const SCORES: &str = "tokenizer.ggml.scores";
/// Whether a space comes before the first word of a text, and behind each token that was found before text is cut.
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// All but the vocabulary.
///
/// # Errors
/// [`TokenizerError`] if scores are malformed.
pub(super) fn parts<'a>(
    metadata: &Metadata,
    vocabulary: &'a Vocabulary<'_>,
    roles: &Roles,
) -> Result<Parts<'a>, TokenizerError> {
    let scores = scores(metadata, vocabulary.len())?;
    let ids = vocabulary.ids()?;
    let bare = Bare::of(vocabulary, &ids);
    let prefix = metadata.bool(PREFIX)?.copied().unwrap_or(true);
    let before = prefix.then(|| json!({"type": "Prepend", "prepend": SPACE}));
    let behind = prefix.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let bytes =
        bare.letters.iter().map(|(letter, name)| replace(name, letter.encode_utf8(&mut [0; 4])));
    let decoders = [replace(SPACE, " ")].into_iter().chain(bytes);
    let decoders = decoders.chain([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    let normalizers: Vec<Value> = before.into_iter().chain([replace(" ", SPACE)]).collect();
    Ok(Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders.chain(behind).collect::<Vec<_>>()}),
        merges: merges(vocabulary, &ids, &scores, &bare)?,
        renamed: bare.renamed,
        unknown: roles.unknown,
        byte_fallback: true,
        whole: false,
    })
}

/// The score of each token.
fn scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f32>, TokenizerError> {
    let scores: Vec<f32> = match metadata.get(SCORES) {
        Some(Said::Integers(whole)) => whole.iter().map(|score| *score as f32).collect(),
        _ => Metadata::required(SCORES, metadata.floats(SCORES))?.clone(),
    };
    check_length(SCORES, scores.len(), tokens)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(TokenizerError::Score { id }),
        None => Ok(scores),
    }
}

/// Whether a token of that kind is made of letters and pieces: signs and bytes are not.
fn is_made(kind: Kind) -> bool {
    matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused)
}

/// Letters of one byte that are no pieces, in pieces that have more letters.
struct Bare {
    /// Each with the name of its byte's token.
    letters: BTreeMap<char, String>,
    /// Pieces that have such letters, by id, ascending, with the names of bytes in their place.
    renamed: Vec<(u32, String)>,
}

impl Bare {
    fn of(vocabulary: &Vocabulary<'_>, ids: &HashMap<&str, u32>) -> Bare {
        let mut bare = Bare { letters: BTreeMap::new(), renamed: Vec::new() };
        for (text, id) in vocabulary.texts.iter().zip(0..) {
            if !is_made(vocabulary.kind(id)) || vocabulary.kind(id).is_added() {
                continue;
            }
            let is_bare = |letter: char| {
                let name = byte_name(letter)?;
                let is_byte = ids.get(&*name).is_some_and(|&id| vocabulary.kind(id) == Kind::Byte);
                let is_piece = ids.contains_key(&*letter.encode_utf8(&mut [0; 4]));
                (is_byte && !is_piece).then_some(name)
            };
            let found: Vec<(char, String)> =
                text.chars().filter_map(|letter| Some((letter, is_bare(letter)?))).collect();
            let own = |letter: char| found.iter().find(|(bare, _)| *bare == letter);
            let named = text.chars().map(|letter| match own(letter) {
                Some((_, name)) => Cow::Borrowed(name.as_str()),
                None => Cow::Owned(letter.to_string()),
            });
            let named: String = named.collect();
            if !found.is_empty() && !ids.contains_key(&*named) {
                bare.letters.extend(found);
                bare.renamed.push((id, named));
            }
        }
        bare
    }
}

/// What the token of a letter's byte is called, if it is one byte, and none that text has been given another sign for.
fn byte_name(letter: char) -> Option<String> {
    (letter.is_ascii() && letter != ' ').then(|| format!("<0x{:02X}>", u32::from(letter)))
}

/// Every way to cut a piece into two, in the order in which they are joined.
fn merges<'a>(
    vocabulary: &'a Vocabulary<'_>,
    ids: &HashMap<&str, u32>,
    scores: &[f32],
    bare: &Bare,
) -> Result<Pairs<'a>, TokenizerError> {
    let renamed: HashMap<u32, &str> =
        bare.renamed.iter().map(|(id, named)| (*id, named.as_str())).collect();
    let name = |id: u32| match renamed.get(&id) {
        Some(named) => Cow::Owned((*named).to_owned()),
        None => Cow::Borrowed(vocabulary.text(id)),
    };
    let lengths = || vocabulary.texts.iter().map(|text| text.len() as u64);
    let work = lengths().map(|length| length * length).sum::<u64>();
    if work > MAX_WORK {
        return Err(TokenizerError::LongPieces { found: work });
    }
    let (mut merges, mut bytes) = (Vec::new(), 0);
    for (text, id) in vocabulary.texts.iter().zip(0..) {
        if !is_made(vocabulary.kind(id)) {
            continue;
        }
        // A letter by its byte is a piece only where the whole is written so, too.
        let piece = |part: &str| {
            let mut letters = part.chars();
            let alone = letters.next().filter(|_| letters.next().is_none());
            let by_byte = || bare.letters.get(&alone.filter(|_| renamed.contains_key(&id))?);
            let made = |&id: &u32| is_made(vocabulary.kind(id));
            ids.get(part).copied().filter(made).or_else(|| ids.get(by_byte()?.as_str()).copied())
        };
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(left), Some(right)) = (piece(left), piece(right))
                && name(id).strip_prefix(&*name(left)) == Some(&*name(right))
            {
                bytes += text.len();
                merges.push(Merge {
                    score: scores[id as usize],
                    bytes: text.len(),
                    id,
                    left,
                    right,
                });
            }
        }
        if bytes > MAX_TEXT_BYTES {
            return Err(TokenizerError::TooLong { key: SCORES, bytes, limit: MAX_TEXT_BYTES });
        }
        if merges.len() > MAX_MERGES {
            let (found, limit) = (merges.len(), MAX_MERGES);
            return Err(TokenizerError::TooMany { key: SCORES, found, limit });
        }
    }
    merges.sort_by(Merge::order);
    Ok(merges.into_iter().map(|merge| (name(merge.left), name(merge.right))).collect())
}

/// One way to cut a piece.
struct Merge {
    score: f32,
    bytes: usize,
    id: u32,
    left: u32,
    right: u32,
}

impl Merge {
    /// Higher scores come first; of one score, the longer piece, as of spaces, whose pieces of all lengths often have the same.
    fn order(&self, other: &Merge) -> std::cmp::Ordering {
        let rest = |it: &Merge| (std::cmp::Reverse(it.bytes), it.id, it.left, it.right);
        other.score.total_cmp(&self.score).then_with(|| rest(self).cmp(&rest(other)))
    }
}
