//! Every token's text and type.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::file::{Added, Kind};
use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// What a token is, as numbers of GGUF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Type {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Tokens by their id, as many as the embedding has rows.
pub(super) struct Tokens {
    all: Vec<Option<(String, Type)>>,
}

impl Tokens {
    /// Those of a vocabulary.
    ///
    /// # Errors
    /// [`Unsupported::Cannot`] for an id without a row, or there twice.
    pub(super) fn of(vocab: &HashMap<String, u32>, rows: usize) -> Result<Tokens, Unsupported> {
        let mut tokens = Tokens { all: vec![None; rows] };
        for (text, id) in vocab {
            let slot = tokens.slot(*id, text)?;
            if let Some((other, _)) = slot {
                let (first, second) =
                    if *other < *text { (&*other, text) } else { (text, &*other) };
                return Err(cannot(format!("tokens {first:?} and {second:?} with the id {id}")));
            }
            let own = if *text == padding(*id as usize) { Type::Unused } else { Type::Normal };
            *slot = Some((text.clone(), own));
        }
        Ok(tokens)
    }

    /// Adds those that are found before text is split, or says of them that they are. Those without a row, such as that of an
    /// image in a model that only reads text, are left out; their texts go to `left_out`.
    pub(super) fn add(&mut self, added: &[Added], kind: Kind, left_out: &mut BTreeSet<String>) {
        for Added { id, content, special, .. } in added {
            if *id as usize >= self.all.len() {
                left_out.insert(content.clone());
                continue;
            }
            let own = if *special { Type::Control } else { Type::UserDefined };
            // Of pieces of letters, llama.cpp compares these with text in which spaces are spaces.
            let text = match (kind, own) {
                (Kind::Scored, Type::UserDefined) => content.replace('▁', " "),
                _ => content.clone(),
            };
            self.all[*id as usize] = Some((text, own));
        }
    }

    /// Says of the tokens for bytes that they are.
    pub(super) fn mark_bytes(&mut self) {
        for (text, own) in self.all.iter_mut().flatten() {
            let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            if digits.is_some_and(|it| it.len() == 2 && u8::from_str_radix(it, 16).is_ok()) {
                *own = Type::Byte;
            }
        }
    }

    /// Says of that token that it stands for what has no token.
    pub(super) fn mark_unknown(&mut self, unknown: &str) {
        if let Some((_, own)) = self.all.iter_mut().flatten().find(|(text, _)| text == unknown) {
            *own = Type::Unknown;
        }
    }

    /// The id of each text.
    pub(super) fn ids(&self) -> HashMap<String, u32> {
        let tokens = (0u32..).zip(&self.all);
        tokens.filter_map(|(id, it)| Some((it.as_ref()?.0.clone(), id))).collect()
    }

    /// Texts and types of all rows; rows that are no token's have a text that says so.
    ///
    /// # Errors
    /// [`Unsupported::Cannot`] for two tokens with one text, at which llama.cpp ends.
    pub(super) fn finish(self) -> Result<(Vec<String>, Vec<i32>), Unsupported> {
        let all = self.all.into_iter().enumerate();
        let (texts, types): (Vec<String>, Vec<i32>) = all
            .map(|(id, it)| it.unwrap_or_else(|| (padding(id), Type::Unused)))
            .map(|(text, own)| (text, own as i32))
            .unzip();
        let mut seen = HashSet::with_capacity(texts.len());
        match texts.iter().find(|text| !seen.insert(text.as_str())) {
            Some(twice) => Err(cannot(format!("two tokens {twice:?}"))),
            None => Ok((texts, types)),
        }
    }

    fn slot(&mut self, id: u32, text: &str) -> Result<&mut Option<(String, Type)>, Unsupported> {
        let rows = self.all.len();
        self.all.get_mut(id as usize).ok_or_else(|| {
            cannot(format!(
                "the token {text:?} with the id {id} beside an embedding of {rows} rows"
            ))
        })
    }
}

/// The text of a row that is no token's.
fn padding(id: usize) -> String {
    format!("[PAD{id}]")
}

fn cannot(what: String) -> Unsupported {
    Unsupported::Cannot { format: FORMAT, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[(&str, u32)]) -> HashMap<String, u32> {
        tokens.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect()
    }

    fn added(id: u32, content: &str, special: bool) -> Added {
        let json = serde_json::json!({"id": id, "content": content, "special": special});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn every_row_has_a_text_and_a_type() {
        let mut tokens = Tokens::of(&vocab(&[("a", 0), ("<0x0A>", 1), ("[PAD5]", 5)]), 7).unwrap();
        let more = [added(2, "<unk>", true), added(3, "<s>", true), added(4, "▁▁", false)];
        let mut left_out = BTreeSet::new();
        tokens.add(&more, Kind::Scored, &mut left_out);
        tokens.add(&[added(7, "<image>", true)], Kind::Scored, &mut left_out);
        assert_eq!(left_out, ["<image>".to_owned()].into());
        tokens.mark_bytes();
        tokens.mark_unknown("<unk>");
        assert_eq!(tokens.ids()["<s>"], 3);
        let (texts, types) = tokens.finish().unwrap();
        assert_eq!(texts, ["a", "<0x0A>", "<unk>", "<s>", "  ", "[PAD5]", "[PAD6]"]);
        assert_eq!(types, [1, 6, 2, 3, 4, 5, 5]);
    }

    #[test]
    fn tokens_that_have_no_place_of_their_own_are_refused() {
        let error = Tokens::of(&vocab(&[("a", 3)]), 3).err().unwrap().to_string();
        assert!(error.contains("\"a\" with the id 3 beside an embedding of 3 rows"), "{error}");
        let error = Tokens::of(&vocab(&[("b", 1), ("a", 1)]), 3).err().unwrap().to_string();
        assert!(error.contains("tokens \"a\" and \"b\" with the id 1"), "{error}");
        let mut tokens = Tokens::of(&vocab(&[("a", 0)]), 3).unwrap();
        tokens.add(&[added(1, "a", true)], Kind::Bytes, &mut BTreeSet::new());
        let error = tokens.finish().unwrap_err().to_string();
        assert!(error.contains("two tokens \"a\""), "{error}");
    }
}
