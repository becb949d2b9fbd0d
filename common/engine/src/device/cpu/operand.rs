//! Stored matrices as kernels of the processor take them.

use std::ops::Range;
use std::sync::Arc;

use cake_checkpoint::{Encoding, FloatType, Fp4, Unpacked};

use super::gemm::affine::exact::dequantize;
use super::gemm::case::RowClass;
use super::gemm::fp8::{Fp8Matrix, ScaleType};
use super::gemm::product::Gemm;
use super::gemm::table::choose;
use super::gemm::weight::{
    Acts, AffineMatrix, Bits, Coded, Decode, Global, InPlace, Matrix, Weight,
};
use super::isa::tier::Tier;
use crate::matrix::StoredMatrix;
use crate::options::{Numerics, Precision};

/// A stored matrix, and what kernels have to know of it beside its encoding.
pub(crate) struct Operand {
    matrix: Arc<StoredMatrix>,
    /// The codes of activations beside it, where products are of whole numbers.
    acts: Acts,
    /// Whether its scales are ones that the kernel of its encoding takes; if not, it is dequantized by its codec.
    is_taken: bool,
}

impl Operand {
    /// The matrix beside activations that are not rounded to a byte.
    pub(crate) fn new(matrix: Arc<StoredMatrix>) -> Operand {
        let is_taken = match (matrix.encoding(), matrix.parts()) {
            (Encoding::Fp8(_), [_, scales]) => ScaleType::of(scales.dtype()).takes(scales.bytes()),
            _ => true,
        };
        Operand { matrix, acts: Acts::Words, is_taken }
    }

    /// The same beside activations that may be rounded to `precision`: where 8 bits are enough, [`Numerics::Int8`] leaves no
    /// more of them, if codes are narrow.
    pub(crate) fn beside(mut self, precision: Precision, numerics: Numerics) -> Operand {
        let is_coarse = numerics == Numerics::Int8 && precision.is_coarse();
        self.acts = if is_coarse && self.is_narrow() { Acts::Bytes } else { Acts::Words };
        self
    }

    /// Whether it is codes below 64.
    fn is_narrow(&self) -> bool {
        self.matrix.encoding().largest_code() < 64
    }

    /// As it is stored.
    pub(crate) fn matrix(&self) -> &Arc<StoredMatrix> {
        &self.matrix
    }

    /// The kernel of this processor for products with the matrix.
    pub(crate) fn gemm(&self, tier: Tier, numerics: Numerics, rows: RowClass) -> &'static dyn Gemm {
        choose(tier, self.weight(0..self.matrix.rows()).kind(), rows, numerics)
    }

    /// Some rows, widened: `[rows, columns]`.
    fn widen(&self, tier: Tier, rows: Range<usize>) -> Vec<f32> {
        match self.weight(rows.clone()) {
            Weight::Affine(matrix) => dequantize(tier, matrix),
            Weight::Float(_) | Weight::Fp8(_) | Weight::Coded(_) => self.matrix.decode(rows),
        }
    }

    /// Some rows, as kernels take them.
    pub(crate) fn weight(&self, rows: Range<usize>) -> Weight<'_> {
        let inputs = self.matrix.columns();
        match (self.matrix.encoding(), self.matrix.parts()) {
            (Encoding::Float(float), _) => {
                Weight::Float(Matrix { bytes: self.matrix.stored(rows), float, inputs })
            }
            (Encoding::Affine(format), [codes, scales, biases]) => {
                let Some(bits) = Bits::of_affine(format.bits()) else {
                    return Weight::Coded(self.coded(rows));
                };
                let params = FloatType::of(scales.dtype());
                let matrix = AffineMatrix {
                    codes: codes.bytes(),
                    scales: scales.bytes(),
                    biases: biases.bytes(),
                    params: params.expect("checked when the matrix was made"),
                    bits,
                    acts: self.acts,
                    group: format.group(),
                    inputs,
                };
                Weight::Affine(matrix.rows(rows))
            }
            (Encoding::Fp8(format), [_, scales]) if self.is_taken => Weight::Fp8(Fp8Matrix {
                numbers: self.matrix.stored(rows.clone()),
                scales: scales.bytes(),
                scale: ScaleType::of(scales.dtype()),
                shared: format.shared().map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
                first: rows.start,
                inputs,
            }),
            _ => Weight::Coded(self.coded(rows)),
        }
    }

    /// Some rows of a matrix that is neither numbers nor codes of a byte or half of one, as kernels take them.
    fn coded(&self, rows: Range<usize>) -> Coded<'_> {
        let matrix = &*self.matrix;
        let mut coded = Coded {
            matrix,
            first: rows.start,
            outputs: rows.len(),
            inputs: matrix.columns(),
            bytes: matrix.stored(rows.clone()),
            group: matrix.encoding().unpacked_group(matrix.columns()),
            is_narrow: self.is_narrow(),
            acts: self.acts,
            in_place: None,
            scales: &[],
            biases: &[],
            float: FloatType::F32,
            global: None,
        };
        let bytes = |part| matrix.part_of(part, &rows);
        match (matrix.encoding(), matrix.parts()) {
            (Encoding::Ggml(kind), _) => coded.in_place = Some(InPlace::Blocks(kind)),
            (Encoding::Affine(format), [_, scales, biases]) => {
                coded.in_place = Some(InPlace::Stream { bits: format.bits() });
                (coded.scales, coded.biases) = (bytes(scales), bytes(biases));
                let float = FloatType::of(scales.dtype());
                coded.float = float.expect("checked when the matrix was made");
            }
            (Encoding::Fp4(kind), [_, scales, globals @ ..]) => {
                coded.in_place = Some(InPlace::Fp4(kind));
                coded.scales = bytes(scales);
                coded.global = globals.first().map(|global| {
                    let bytes = global.bytes().first_chunk();
                    let bytes = bytes.expect("checked when the matrix was made: one F32");
                    let number = f32::from_le_bytes(*bytes);
                    match kind {
                        Fp4::NvMultiplied => Global::Multiplies(number),
                        Fp4::Mx | Fp4::Nv | Fp4::NvDivided => Global::Divides(number),
                    }
                });
            }
            _ => {}
        }
        coded
    }
}

impl Decode for StoredMatrix {
    fn decode(&self, rows: Range<usize>, out: &mut [f32]) {
        self.decode_into(rows, out);
    }

    fn unpack(&self, rows: Range<usize>, out: Unpacked<'_>) {
        self.unpack_into(rows, out);
    }
}

/// A matrix of which rows are looked up where it is stored: the processor widens them, whichever device computes with them.
pub(crate) struct Table {
    operand: Operand,
    tier: Tier,
}

impl Table {
    /// The table that is stored so.
    pub(crate) fn new(matrix: StoredMatrix) -> Table {
        Table { operand: Operand::new(Arc::new(matrix)), tier: Tier::detect() }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.operand.matrix.rows()
    }

    /// Numbers of a row.
    pub(crate) fn columns(&self) -> usize {
        self.operand.matrix.columns()
    }

    /// One row, widened.
    pub(crate) fn row(&self, index: usize) -> Vec<f32> {
        self.operand.widen(self.tier, index..index + 1)
    }
}
