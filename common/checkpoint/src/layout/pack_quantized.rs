//! As compressed-tensors has whole numbers (`pack-quantized`): codes as everybody else has them.
//!
//! `P.weight_packed` I32 `[rows, columns · bits / 32]`: a word has the codes of neighbours in a row, each the number and the middle
//! of all codes. `P.weight_scale` `[rows, groups]`. `P.weight_zero_point` I32 `[⌈rows · bits / 32⌉, groups]`, where numbers are not
//! symmetric: a word has those of neighbouring rows, each with the middle, too. `P.weight_g_idx` I32 `[columns]`: the group of each
//! column, or -1 where none was given. `P.weight_shape` says what the other shapes do.

use super::format::Layout;
use super::integers::{WORD, groups, order, take, take_words, weight, words, zeros};
use super::module::Module;
use super::word::Word;
use crate::catalog::CatalogError;
use crate::container::{Across, Places, StoredTensor, Strides};
use crate::encoding::{
    Encoding, Integer, Part,
    integer::{Order, Zero},
};
use crate::error::Error;

/// The layout of `pack-quantized`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackQuantized {
    /// Bits of a code: 4 or 8.
    pub(crate) bits: u64,
    /// Codes that share a scale; `None` if those of a row do.
    pub(crate) group: Option<u64>,
    /// What codes are counted from.
    pub(crate) zero: Zero,
}

impl PackQuantized {
    /// One of its formats, all of which there are: the configuration was refused otherwise.
    pub(crate) fn format(&self, order: Order) -> Option<Integer> {
        Integer::new(self.bits, self.group, self.zero, order)
    }
}

impl Layout for PackQuantized {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight_packed", Word::Part(Part::Weight)),
            (".weight_scale", Word::Part(Part::Scales)),
            (".weight_zero_point", Word::Part(Part::Zeros)),
            (".weight_g_idx", Word::Part(Part::Groups)),
            (".weight_shape", Word::Beside),
        ]
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let module = &mut module;
        let plain = self.format(Order::Neighbours).expect("the format was read");
        let (encoding, in_word) = (Encoding::Integer(plain), WORD / self.bits);
        let [rows, words_right] = words(module)?;
        let columns = words_right.saturating_mul(in_word);
        let count = groups(module, plain, columns)?;
        let scales = take(module, Part::Scales, encoding, &[rows, count])?;
        let across = Across {
            bits: self.bits as u8,
            columns: count,
            words: Strides { row: count, column: 1 },
            places: Places::InOrder,
        };
        let stored = match (self.zero, module.part(Part::Zeros)) {
            (Zero::Middle, None) => None,
            (Zero::Middle, Some(found)) => {
                let reason = "the configuration says that its numbers are symmetric";
                return Err(
                    CatalogError::UnexpectedTensor { tensor: found.name.clone(), reason }.into()
                );
            }
            _ => {
                let shape = [rows.div_ceil(in_word), count];
                Some(zeros(take_words(module, Part::Zeros, encoding, &shape)?, rows, across))
            }
        };
        let ordered = match module.has(Part::Groups) {
            true => order(module, plain, columns)?,
            false => None,
        };
        let order = if ordered.is_some() { Order::Chosen } else { Order::Neighbours };
        let format = self.format(order).expect("one group is never chosen");
        let codes = take_words(module, Part::Weight, encoding, &[rows, words_right])?;
        Ok([weight(codes, format), scales].into_iter().chain(stored).chain(ordered).collect())
    }
}
