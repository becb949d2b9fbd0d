//! As GPTQ's files have them: codes and zero points packed in words, everything turned (`[inputs, outputs]`).
//!
//! `P.qweight` I32 `[columns · bits / 32, rows]`: a word has the codes of neighbours in a row, the first in its lowest bits, so
//! that whole words change places. `P.qzeros` I32 `[groups, rows · bits / 32]`: a word has those of neighbouring rows.
//! `P.scales` `[groups, rows]`. `P.g_idx` I32 `[columns]`: the group of each column, which must be there where the
//! configuration has `desc_act`; where it only counts up, it is not sent.

use super::format::Layout;
use super::integers::{groups, in_pieces, order, take, take_words, turned, weight, words, zeros};
use super::module::Module;
use super::word::Word;
use crate::container::{Across, Places, StoredTensor, Strides};
use crate::encoding::{
    Encoding, Integer, Part,
    integer::{Order, Zero},
};
use crate::error::Error;

/// What names end in.
const WORDS: &[(&str, Word)] = &[
    (".qweight", Word::Part(Part::Weight)),
    (Part::Scales.ending(), Word::Part(Part::Scales)),
    (".qzeros", Word::Part(Part::Zeros)),
    (".g_idx", Word::Part(Part::Groups)),
];

/// The layout of GPTQ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gptq {
    /// Bits of a code: 4 or 8.
    pub(crate) bits: u64,
    /// Codes that share a scale; `None` if those of a row do.
    pub(crate) group: Option<u64>,
    /// What stored zero points mean, unless they all say the middle.
    pub(crate) zero: Zero,
    /// Whether the zero points should all say the middle.
    pub(crate) is_symmetric: bool,
    /// Whether columns may have groups of their own.
    pub(crate) is_ordered: bool,
}

impl Gptq {
    /// One of its formats, all of which there are: the configuration was refused otherwise.
    pub(crate) fn format(&self, zero: Zero, order: Order) -> Option<Integer> {
        Integer::new(self.bits, self.group, zero, order)
    }

    /// Whether the zero points of a module all say the middle. The configuration says that they do; some files say it one
    /// way and have the zero points of the other (8, not 7, under the name of the version that adds 1), and some say it and
    /// have others: each of them is looked at, as those that say the middle are dropped.
    fn is_middle(&self, module: &Module<'_>, zeros: &StoredTensor) -> Result<bool, Error> {
        if !self.is_symmetric {
            return Ok(false);
        }
        let ways: [u8; 2] = if self.bits == 4 { [0x77, 0x88] } else { [0x7f, 0x80] };
        let mut way = None; // All in one: half of each would be no version.
        in_pieces(module, zeros, |_, piece| {
            way = way.or(piece.first().copied());
            let is_way = |found: &u8| way == Some(*found) && ways.contains(found);
            Ok(piece.iter().all(is_way))
        })
    }
}

impl Layout for Gptq {
    fn words(&self) -> &'static [(&'static str, Word)] {
        WORDS
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let module = &mut module;
        let plain = self.format(Zero::Middle, Order::Neighbours).expect("the format was read");
        let encoding = Encoding::Integer(plain);
        let in_word = super::integers::WORD / self.bits;
        let [words_down, rows] = words(module)?;
        let columns = words_down.saturating_mul(in_word);
        let count = groups(module, plain, columns)?;
        let scales = take(module, Part::Scales, encoding, &[count, rows])?;
        let zeros_right = rows.div_ceil(in_word);
        let stored = take_words(module, Part::Zeros, encoding, &[count, zeros_right])?;
        let ordered = match module.has(Part::Groups) || self.is_ordered {
            true => order(module, plain, columns)?,
            false => None,
        };
        let zero = if self.is_middle(module, &stored)? { Zero::Middle } else { self.zero };
        let order = if ordered.is_some() { Order::Chosen } else { Order::Neighbours };
        let format = self.format(zero, order).expect("one group is never chosen");
        let codes = take_words(module, Part::Weight, encoding, &[words_down, rows])?;
        let across = Across {
            bits: self.bits as u8,
            columns: count,
            words: Strides { row: 1, column: zeros_right },
            places: Places::InOrder,
        };
        let stored = (zero != Zero::Middle).then(|| zeros(stored, rows, across));
        let parts = [weight(turned(codes), format), turned(scales)].into_iter();
        Ok(parts.chain(stored).chain(ordered).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::container::Lies;
    use crate::dtype::Dtype;
    use crate::encoding::ModuleFormat;
    use crate::layout::integers::AT_ONCE;

    #[test]
    fn each_zero_point_of_symmetric_codes_is_looked_at() {
        let bytes = 2 * AT_ONCE + 12;
        let zeros = StoredTensor {
            name: "up_proj.qzeros".to_owned(),
            file: 0,
            dtype: Dtype::I32,
            shape: vec![1, bytes / 4],
            offset: 0,
            bytes,
            lies: Lies::Together,
            encoding: None,
        };
        for (bits, ways) in [(4, [0x77, 0x88]), (8, [0x7f, 0x80])] {
            let zero = Zero::OneMore;
            let gptq = Gptq { bits, group: Some(32), zero, is_symmetric: true, is_ordered: false };
            let is_middle = |found: &[u8]| {
                let read = |_: &StoredTensor, start: u64, piece: &mut [u8]| {
                    piece.copy_from_slice(&found[start as usize..][..piece.len()]);
                    Ok(())
                };
                let (called, tensors) = (&mut BTreeMap::new(), Vec::new());
                let (path, said, words) = ("up_proj", ModuleFormat::Plain, WORDS);
                let module = Module { path, said, tensors, words, called, read: &read };
                gptq.is_middle(&module, &zeros).unwrap()
            };
            for way in ways {
                let mut found = vec![way; bytes as usize];
                assert!(is_middle(&found));
                for place in [0, 4096, AT_ONCE, bytes - 1] {
                    for other in [way ^ 0x10, ways[0] ^ ways[1] ^ way] {
                        found[place as usize] = other;
                        assert!(!is_middle(&found), "{other:x} at {place}");
                    }
                    found[place as usize] = way;
                }
            }
        }
    }
}
