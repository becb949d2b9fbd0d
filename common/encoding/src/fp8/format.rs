//! Which weights share a scale.

use std::fmt;

/// Rows that blocks may have, and columns: those that are in use, and powers of two between them. Workers tell by name which
/// of them they run.
const ROWS: [u16; 5] = [1, 32, 64, 128, 256];
const COLUMNS: [u16; 4] = [32, 64, 128, 256];

/// Which weights of a matrix `P` share a scale.
///
/// A matrix `[rows, columns]` is two tensors: `P.weight` F8_E4M3 `[rows, columns]`, and `P.scales`, which has a scale for each
/// block, `[⌈rows / block rows⌉, ⌈columns / block columns⌉]` (the last blocks may be cut), for each row, `[rows, 1]`, or for
/// all, `[1]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fp8 {
    /// All of them.
    Matrix,
    /// Those of a row.
    Row,
    /// Those of a block.
    Block(Fp8Block),
}

/// A block of weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fp8Block {
    rows: u16,
    columns: u16,
}

impl Fp8 {
    /// Blocks of so many rows and columns; `None` for what is not supported.
    pub fn block(rows: u64, columns: u64) -> Option<Fp8> {
        let one_of = |sizes: &[u16], size: u64| {
            sizes.iter().copied().find(|&known| u64::from(known) == size)
        };
        let (rows, columns) = (one_of(&ROWS, rows)?, one_of(&COLUMNS, columns)?);
        Some(Fp8::Block(Fp8Block { rows, columns }))
    }

    /// All there are.
    pub(super) fn all() -> impl Iterator<Item = Fp8> {
        let blocks = ROWS.into_iter().flat_map(|rows| {
            COLUMNS.into_iter().map(move |columns| Fp8::Block(Fp8Block { rows, columns }))
        });
        [Fp8::Matrix, Fp8::Row].into_iter().chain(blocks)
    }

    /// That of a text such as `128x128`, `row` or `matrix`.
    pub(crate) fn named(text: &str) -> Option<Fp8> {
        Fp8::all().find(|format| format.to_string() == text)
    }

    /// Rows and columns that share a scale, in a matrix of any size.
    pub const fn shared(self) -> [u64; 2] {
        match self {
            Fp8::Matrix => [u64::MAX, u64::MAX],
            Fp8::Row => [1, u64::MAX],
            Fp8::Block(Fp8Block { rows, columns }) => [rows as u64, columns as u64],
        }
    }

    /// Shape of the scales of a matrix of that shape.
    pub(super) fn scales(self, [rows, columns]: [u64; 2]) -> Vec<u64> {
        let [block_rows, block_columns] = self.shared();
        match self {
            Fp8::Matrix => vec![1],
            Fp8::Row => vec![rows, 1],
            Fp8::Block(_) => vec![rows.div_ceil(block_rows), columns.div_ceil(block_columns)],
        }
    }
}

impl fmt::Display for Fp8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fp8::Matrix => f.pad("matrix"),
            Fp8::Row => f.pad("row"),
            Fp8::Block(Fp8Block { rows, columns }) => f.pad(&format!("{rows}x{columns}")),
        }
    }
}
