//! What numbers are written as.

use std::fmt::Debug;

use cake_checkpoint::encoding::{ENCODER_VERSION, WEIGHED_VERSION};
use cake_checkpoint::{Counts, Digest, EncodeError, Encoding, FloatType};

/// A way to write rows of numbers. One file per form, or one beside its like.
pub trait Form: Debug + Send + Sync {
    /// A text that changes whenever the same numbers give other bytes: under which a job that broke off goes on.
    fn identity(&self) -> String;

    /// Bytes of a row of so many columns, in each part.
    fn row_bytes(&self, columns: u64) -> Vec<u64>;

    /// Bytes before the rows, in the first part.
    fn head_bytes(&self) -> u64 {
        0
    }

    /// Whether all numbers of a matrix decide about each: then it is read twice, first for its largest magnitude.
    fn needs_largest(&self) -> bool {
        false
    }

    /// What comes before the rows. `largest`: the largest magnitude in the matrix, 0 where nobody asked for it.
    fn head(&self, largest: f32) -> Vec<u8> {
        let _ = largest;
        Vec::new()
    }

    /// Writes whole rows: `out` has a slice for each part, just as long as the rows need. `largest` as above.
    ///
    /// # Errors
    /// [`EncodeError`] for a number that the form does not have; its index is among `rows`.
    fn write(
        &self,
        rows: &[f32],
        columns: usize,
        largest: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError>;
}

/// Plain numbers, rounded to the nearest, ties to even.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloatForm(pub FloatType);

impl Form for FloatForm {
    fn identity(&self) -> String {
        format!("{} 1", self.0.dtype())
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        vec![columns * self.0.bytes() as u64]
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let [out] = out else { panic!("plain numbers have one part") };
        let beyond = |index| EncodeError::Beyond { index, value: rows[index], float: self.0 };
        self.0.narrow(rows, out).map_err(beyond)
    }
}

/// An encoding that plain numbers are turned into, part by part; scales and the like have the type `params` where there is a
/// choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackedForm {
    pub(crate) encoding: Encoding,
    pub(crate) params: FloatType,
}

impl PackedForm {
    /// Writes whole rows; `counts` says how much the error of each number counts.
    fn encode(
        &self,
        rows: &[f32],
        counts: Option<&[f32]>,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let mut out: Vec<Option<&mut [u8]>> = out.iter_mut().map(|it| Some(&mut **it)).collect();
        self.encoding.encode(rows, counts, self.params, &mut out)
    }
}

impl Form for PackedForm {
    fn identity(&self) -> String {
        format!("{} {:?} {ENCODER_VERSION}", self.encoding, self.params)
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        let group = self.encoding.encoded_group().expect("there is an encoder") as u64;
        let units = self.encoding.encoded_bytes(self.params).into_iter();
        units.map(|unit| columns / group * unit as u64).collect()
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        self.encode(rows, None, out)
    }
}

/// The same where errors count by column, as `counts` says of a row.
#[derive(Clone, Debug)]
pub(crate) struct WeighedForm {
    pub(crate) packed: PackedForm,
    pub(crate) counts: Counts,
}

impl Form for WeighedForm {
    fn identity(&self) -> String {
        format!("{} {WEIGHED_VERSION} {}", self.packed.identity(), Digest::of(self.counts.bytes()))
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        self.packed.row_bytes(columns)
    }

    fn write(
        &self,
        rows: &[f32],
        columns: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let counts = self.counts.numbers().repeat(rows.len() / columns.max(1));
        self.packed.encode(rows, Some(&counts), out)
    }
}
