//! One matrix or vector on its way into a GGUF file.

use cake_checkpoint::{Dtype, Encoding};

use super::FORMAT;
use super::form::GgufType;
use super::names::{self, Module};
use super::writer::Info;
use crate::error::Unsupported;
use crate::piece::{Order, Piece, Place, Rows, Stretch};

/// A matrix or a vector of the checkpoint, and what it is in GGUF.
pub(super) struct Matrix {
    pub(super) module: Module,
    pub(super) ending: &'static str,
    pub(super) encoding: Encoding,
    pub(super) parts: Vec<(Dtype, Stretch)>,
    /// Rows and columns; a vector is one row.
    pub(super) shape: [u64; 2],
    pub(super) is_vector: bool,
    pub(super) order: Order,
    pub(super) add: f32,
    /// Its name in the checkpoint.
    pub(super) name: String,
}

impl Matrix {
    /// The tensor that it is, or is a slice of. `to`: what matrices become, if not what they are; `tied`: whether the
    /// embedding serves as head.
    pub(super) fn info(&self, to: Option<GgufType>, tied: bool) -> Info {
        let [rows, columns] = self.shape;
        let Module { name, expert } = &self.module;
        let is_end = name == names::HEAD || (tied && name == names::EMBEDDING);
        // What is small, or chooses, stays as exact as it can be.
        let kind = match to.unwrap_or_else(|| GgufType::of(self.encoding)) {
            _ if self.is_vector || name.ends_with(names::ROUTER) => GgufType::F32,
            to if is_end => to.of_end().of_row(columns),
            to => to.of_row(columns),
        };
        let shape = match expert {
            _ if self.is_vector => vec![rows * columns],
            Some((_, count)) => vec![*count, rows, columns],
            None => vec![rows, columns],
        };
        Info { name: format!("{name}{}", self.ending), shape, kind }
    }

    /// How it is written into a tensor of that type that begins there.
    pub(super) fn piece(self, kind: GgufType, start: u64) -> Result<Piece, Unsupported> {
        let Matrix { module, encoding, parts, shape, order, add, name, .. } = self;
        let [rows, columns] = shape;
        let bytes = kind.row_bytes(columns).and_then(|bytes| bytes.checked_mul(rows));
        let before = module.expert.map_or(0, |(number, _)| number);
        let offset = bytes.and_then(|bytes| before.checked_mul(bytes)?.checked_add(start));
        let too_large = || {
            let what = format!("the size of tensor {name:?}");
            Unsupported::Cannot { format: FORMAT, what }
        };
        let place = Place { output: 0, offset: offset.ok_or_else(too_large)? };
        if kind.is(encoding)
            && order == Order::Same
            && add == 0.0
            && let [(_, from)] = parts[..]
        {
            return Ok(Piece::Copy { from, place });
        }
        let (form, places) = (kind.form(), vec![place]);
        Ok(Piece::Rows(Rows { name, encoding, parts, shape, order, add, form, places }))
    }
}
