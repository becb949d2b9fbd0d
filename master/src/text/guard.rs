//! Which control tokens of a rendered conversation are the template's own, and which somebody wrote into it.
//!
//! The conversation is rendered twice: as it is, and with a mask, a character that nobody uses, in place of
//! every character with which a control token may begin, wherever somebody else than the template wrote it.
//! Masks travel through whatever a template does (trimming, cutting, joining, JSON) and tell in the end what
//! came from whom, also where a template joins pieces of different origin to what is a control token.
//!
//! ```text
//! content   "a <|im_end|> b"       template writes  <|im_start|>user\na ▒|im_end|> b<|im_end|>\n
//! masked    "a ▒|im_end|> b"                        ^ its own          ^ plain text  ^ its own
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use aho_corasick::AhoCorasick;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use super::Error;
use super::plain::Finder;

/// Characters that Unicode keeps for what goes on inside of programs, where no text has them.
pub(super) const MASKS: RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';
/// More of them, for private use, should a text have those or a model many kinds of control tokens.
const MORE_MASKS: RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Knows the control tokens of a model.
pub(super) struct Guard {
    pub(super) finder: Finder,
    /// All control tokens, to be found wherever they overlap.
    control: AhoCorasick,
    /// Of each control token, where its character lies that is masked, in bytes.
    offsets: Vec<usize>,
    /// Those characters, but for letters and digits, which would mask most of a text.
    firsts: HashSet<char>,
    /// Whether characters that become such ones when they are normalized count as well.
    normalizes: bool,
    /// Texts of the template's that messages may have in them, and that are no part of a control token.
    literals: Vec<String>,
}

/// A conversation with masks in it.
#[derive(Debug)]
pub(super) struct Masked {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Vec<Value>,
    /// Whether somebody wrote a whole control token.
    pub(super) has_control: bool,
    /// What each mask stands for.
    originals: HashMap<char, char>,
}

impl Guard {
    /// None if the model has no control tokens. `literals` are the quoted texts of its template.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        literals: Vec<String>,
    ) -> tokenizers::Result<Option<Self>> {
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.values().filter(|token| token.special);
        let tokens: BTreeSet<String> = special.clone().map(|token| token.content.clone()).collect();
        let tokens = Vec::from_iter(tokens);
        if tokens.is_empty() {
            return Ok(None);
        }
        let place = |token: &String| {
            let found = |wanted: fn(char) -> bool| token.char_indices().find(|(_, c)| wanted(*c));
            let sign = found(|c| !c.is_alphanumeric() && !c.is_whitespace());
            sign.or_else(|| found(|c| !c.is_whitespace())).unwrap_or((0, '\0'))
        };
        let places: Vec<(usize, char)> = tokens.iter().map(place).collect();
        let firsts = places.iter().map(|(_, c)| *c).filter(|c| !c.is_alphanumeric() && *c != '\0');
        let firsts: HashSet<char> = firsts.collect();
        let begins = |literal: &str| {
            tokens.iter().any(|token| token.contains(literal) || literal.contains(token.as_str()))
        };
        let literals =
            literals.into_iter().filter(|literal| literal.contains(|c: char| firsts.contains(&c)));
        Ok(Some(Guard {
            finder: Finder::new(tokenizer)?,
            control: AhoCorasick::new(&tokens)?,
            offsets: places.iter().map(|(offset, _)| *offset).collect(),
            literals: literals.filter(|literal| !begins(literal)).collect(),
            normalizes: tokenizer.get_normalizer().is_some()
                && special.clone().any(|token| token.normalized),
            firsts,
        }))
    }

    /// Masks a conversation for a template of this source; none if there is nothing to mask.
    ///
    /// # Errors
    /// [`Error::NoMask`] if the conversation itself uses all characters for masks.
    pub(super) fn mask(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: &[Value],
        source: &str,
    ) -> Result<Option<Masked>, Error> {
        let mut used: HashSet<char> = source.chars().filter(is_mask).collect();
        let mut any = false;
        for value in messages.iter().chain(tools) {
            strings(value, &mut |text| {
                any |= self.concerns(tokenizer, text);
                used.extend(text.chars().filter(is_mask));
            });
        }
        if !any {
            return Ok(None);
        }
        let free = MASKS.chain(MORE_MASKS).filter(|mask| !used.contains(mask));
        let mut masking =
            Masking { guard: self, tokenizer, free, masks: HashMap::new(), has_control: false };
        let mut masked = |values: &[Value]| {
            values.iter().map(|value| masking.value(value)).collect::<Result<Vec<_>, _>>()
        };
        let (messages, tools) = (masked(messages)?, masked(tools)?);
        let originals = masking.masks.iter().map(|(original, mask)| (*mask, *original)).collect();
        Ok(Some(Masked { messages, tools, has_control: masking.has_control, originals }))
    }

    fn concerns(&self, tokenizer: &Tokenizer, text: &str) -> bool {
        text.contains(|c: char| self.firsts.contains(&c))
            || self.control.is_match(text)
            || (self.normalizes && text.chars().any(|c| self.becomes_first(tokenizer, c)))
    }

    /// Whether a normalized character begins a control token.
    fn becomes_first(&self, tokenizer: &Tokenizer, character: char) -> bool {
        let mut written = NormalizedString::from(character.to_string());
        let normalizer = tokenizer.get_normalizer().filter(|_| !character.is_alphanumeric());
        normalizer.is_some_and(|normalizer| {
            normalizer.normalize(&mut written).is_ok()
                && written
                    .get()
                    .chars()
                    .find(|c| !c.is_whitespace())
                    .is_some_and(|c| self.firsts.contains(&c))
        })
    }
}

impl Masked {
    /// The text behind a rendered one with masks, and in which bytes of it masks were, in ascending order.
    pub(super) fn unmask(&self, rendered: &str) -> (String, Vec<usize>) {
        let (mut text, mut places) = (String::with_capacity(rendered.len()), Vec::new());
        for character in rendered.chars() {
            match self.originals.get(&character) {
                Some(original) => {
                    places.push(text.len());
                    text.push(*original);
                }
                None => text.push(character),
            }
        }
        (text, places)
    }
}

/// Puts masks into one conversation.
struct Masking<'a, F> {
    guard: &'a Guard,
    tokenizer: &'a Tokenizer,
    free: F,
    /// For each character that was masked, its mask.
    masks: HashMap<char, char>,
    has_control: bool,
}

impl<F: Iterator<Item = char>> Masking<'_, F> {
    fn value(&mut self, value: &Value) -> Result<Value, Error> {
        Ok(match value {
            Value::String(text) => Value::String(self.text(text, false)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    Ok((self.text(key, true)?, self.value(value)?))
                };
                Value::Object(fields.iter().map(field).collect::<Result<_, Error>>()?)
            }
            other => other.clone(),
        })
    }

    fn text(&mut self, text: &str, is_key: bool) -> Result<String, Error> {
        let guard = self.guard;
        if !guard.concerns(self.tokenizer, text) {
            return Ok(text.to_owned());
        }
        let mut always = HashSet::new();
        for found in guard.control.find_overlapping_iter(text) {
            always.insert(found.start() + guard.offsets[found.pattern().as_usize()]);
            self.has_control = true;
        }
        let mut let_be: HashSet<usize> = HashSet::new();
        for literal in &guard.literals {
            let found = text.match_indices(literal.as_str());
            let_be.extend(found.flat_map(|(at, literal)| at..at + literal.len()));
        }
        let mut masked = String::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            let is_first = guard.firsts.contains(&character)
                || (guard.normalizes && guard.becomes_first(self.tokenizer, character));
            // Keys are names by which a template finds its fields: `name` stays what it is.
            let is_whole = always.contains(&at) && !(is_key && character.is_alphanumeric());
            masked.push(match is_whole || (is_first && !let_be.contains(&at)) {
                true => self.mask(character)?,
                false => character,
            });
        }
        Ok(masked)
    }

    fn mask(&mut self, character: char) -> Result<char, Error> {
        if let Some(mask) = self.masks.get(&character) {
            return Ok(*mask);
        }
        let mask = self.free.next().ok_or(Error::NoMask)?;
        self.masks.insert(character, mask);
        Ok(mask)
    }
}

/// Calls `each` with every string and every key in `value`.
fn strings(value: &Value, each: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, each)),
        Value::Object(fields) => {
            for (key, value) in fields {
                each(key);
                strings(value, each);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a character may stand for another one.
fn is_mask(character: &char) -> bool {
    MASKS.contains(character) || MORE_MASKS.contains(character)
}
