//! A weight matrix as it is stored, plain or packed, checked once.

use std::ops::Range;

use cake_checkpoint::{MappedMatrix, MappedTensor};

use crate::device::cpu::element::FloatType;
use crate::device::cpu::gemm::affine::exact::widen;
use crate::device::cpu::gemm::case::RowClass;
use crate::device::cpu::gemm::product::Gemm;
use crate::device::cpu::gemm::table::choose;
use crate::device::cpu::gemm::weight::{AffineMatrix, Bits, Matrix, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::options::Numerics;

/// A matrix `[rows, columns]` that stays as it is stored, whose tensors have the sizes that go
/// with it.
pub(crate) struct StoredMatrix {
    rows: usize,
    columns: usize,
    weight: MappedTensor,
    encoding: Stored,
}

/// What the bytes mean.
enum Stored {
    /// The numbers themselves.
    Float(FloatType),
    /// Codes with a scale and a bias per group.
    Affine {
        scales: MappedTensor,
        biases: MappedTensor,
        params: FloatType,
        bits: Bits,
        group: usize,
    },
}

impl StoredMatrix {
    /// The matrix, if it is one of `[any, columns]`; `name` is for messages.
    ///
    /// # Errors
    /// If the types, shapes or lengths of its tensors are not those of such a matrix.
    pub(crate) fn new(
        name: &str,
        matrix: MappedMatrix,
        columns: usize,
    ) -> Result<StoredMatrix, Error> {
        let MappedMatrix { weight, packed } = matrix;
        let rows = weight.shape().first().copied().unwrap_or(0);
        let Some(packed) = packed else {
            let float = float_type(name, &weight)?;
            check_shape(name, &weight, &[rows, columns as u64])?;
            let encoding = Stored::Float(float);
            return Ok(StoredMatrix { rows: rows as usize, columns, weight, encoding });
        };
        let group = packed.format.group();
        let Some((codes, params)) = packed.format.packed_shapes(rows, columns as u64) else {
            let name = name.to_owned();
            return Err(Error::NotWholeGroups { name, columns, group });
        };
        check_shape(name, &weight, &codes)?;
        let param_type = float_type(name, &packed.scales)?;
        for tensor in [&packed.scales, &packed.biases] {
            check_shape(name, tensor, &params)?;
            if float_type(name, tensor)? != param_type {
                let (name, dtype) = (name.to_owned(), tensor.dtype());
                return Err(Error::UnsupportedDtype { name, dtype });
            }
        }
        let bits = match packed.format.bits() {
            4 => Bits::Four,
            _ => Bits::Eight,
        };
        let (scales, biases) = (packed.scales, packed.biases);
        let encoding = Stored::Affine { scales, biases, params: param_type, bits, group };
        Ok(StoredMatrix { rows: rows as usize, columns, weight, encoding })
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of one row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The kernel of this processor for products with the matrix.
    pub(crate) fn gemm(&self, tier: Tier, numerics: Numerics, rows: RowClass) -> &'static dyn Gemm {
        choose(tier, self.weight(0..self.rows).encoding(), rows, numerics)
    }

    /// Some rows, widened: `[rows, columns]`.
    pub(crate) fn widen(&self, tier: Tier, rows: Range<usize>) -> Vec<f32> {
        match &self.encoding {
            Stored::Float(float) => float.widen(self.float(*float, rows).bytes),
            Stored::Affine { .. } => widen(tier, self.affine().rows(rows)),
        }
    }

    /// Some rows, as kernels take them.
    pub(crate) fn weight(&self, rows: Range<usize>) -> Weight<'_> {
        match &self.encoding {
            Stored::Float(float) => Weight::Float(self.float(*float, rows)),
            Stored::Affine { .. } => Weight::Affine(self.affine().rows(rows)),
        }
    }

    /// Some rows as they are stored, codes without their scales and biases.
    pub(crate) fn stored(&self, rows: Range<usize>) -> &[u8] {
        self.weight(rows).bytes()
    }

    fn float(&self, float: FloatType, rows: Range<usize>) -> Matrix<'_> {
        let row_bytes = self.columns * float.bytes();
        let bytes = &self.weight.bytes()[rows.start * row_bytes..rows.end * row_bytes];
        Matrix { bytes, float, inputs: self.columns }
    }

    /// The whole packed matrix.
    fn affine(&self) -> AffineMatrix<'_> {
        let Stored::Affine { scales, biases, params, bits, group } = &self.encoding else {
            unreachable!("asked of packed matrices only");
        };
        AffineMatrix {
            codes: self.weight.bytes(),
            scales: scales.bytes(),
            biases: biases.bytes(),
            params: *params,
            bits: *bits,
            group: *group,
            inputs: self.columns,
        }
    }
}

/// The kernel type of a tensor, whose length is checked against its shape.
pub(crate) fn float_type(name: &str, tensor: &MappedTensor) -> Result<FloatType, Error> {
    let dtype = tensor.dtype();
    let float = FloatType::of(dtype)
        .ok_or_else(|| Error::UnsupportedDtype { name: name.to_owned(), dtype })?;
    let elements = tensor.shape().iter().fold(1u64, |product, &axis| product.saturating_mul(axis));
    let expected = elements.saturating_mul(float.bytes() as u64);
    let found = tensor.bytes().len() as u64;
    if expected != found {
        return Err(Error::WrongLength { name: name.to_owned(), expected, found });
    }
    Ok(float)
}

/// A vector of `width` values, widened.
pub(crate) fn vector(name: &str, tensor: &MappedTensor, width: usize) -> Result<Vec<f32>, Error> {
    check_shape(name, tensor, &[width as u64])?;
    Ok(float_type(name, tensor)?.widen(tensor.bytes()))
}

/// Refuses a tensor of another shape.
pub(crate) fn check_shape(
    name: &str,
    tensor: &MappedTensor,
    expected: &[u64],
) -> Result<(), Error> {
    if tensor.shape() == expected {
        return Ok(());
    }
    let (expected, found) = (expected.to_vec(), tensor.shape().to_vec());
    Err(Error::WrongShape { name: name.to_owned(), expected, found })
}
