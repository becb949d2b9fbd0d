//! As AWQ's files have them (`gemm`): everything turned (`[inputs, outputs]`), words with the codes of neighbouring rows.
//!
//! `P.qweight` I32 `[columns, rows / 8]`, `P.qzeros` I32 `[groups, rows / 8]`: of eight rows, a word has those with even
//! numbers first. `P.scales` `[groups, rows]`. A zero point is what it says.

use super::format::Layout;
use super::integers::{WORD, groups, take, take_words, turned, weight, words, zeros};
use super::module::Module;
use super::word::Word;
use crate::container::{Across, Lies, Places, StoredTensor, Strides};
use crate::encoding::{Encoding, Integer, Part};
use crate::error::Error;

/// What names end in.
const WORDS: &[(&str, Word)] = &[
    (".qweight", Word::Part(Part::Weight)),
    (Part::Scales.ending(), Word::Part(Part::Scales)),
    (".qzeros", Word::Part(Part::Zeros)),
];

/// The layout of AWQ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Awq {
    pub(crate) format: Integer,
}

impl Layout for Awq {
    fn words(&self) -> &'static [(&'static str, Word)] {
        WORDS
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let (module, format) = (&mut module, self.format);
        let (encoding, in_word) = (Encoding::Integer(format), WORD / format.bits() as u64);
        let [columns, words_right] = words(module)?;
        let rows = words_right.saturating_mul(in_word);
        let count = groups(module, format, columns)?;
        let scales = take(module, Part::Scales, encoding, &[count, rows])?;
        let stored = take_words(module, Part::Zeros, encoding, &[count, words_right])?;
        let codes = take_words(module, Part::Weight, encoding, &[columns, words_right])?;
        let across = |columns| Across {
            bits: format.bits() as u8,
            columns,
            words: Strides { row: 1, column: words_right },
            places: Places::EvenFirst,
        };
        let (shape, lies) = (vec![rows, columns / in_word], Lies::Across(across(columns)));
        let codes = StoredTensor { shape, lies, ..codes };
        Ok(vec![weight(codes, format), turned(scales), zeros(stored, rows, across(count))])
    }
}
