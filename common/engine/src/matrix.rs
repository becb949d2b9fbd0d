//! A weight matrix as it is stored, plain or packed, checked once.

use std::borrow::Cow;
use std::ops::Range;

use cake_checkpoint::{
    Dtype, Encoding, MappedMatrix, MappedTensor, Memory, PartSpec, RowsAt, Unpacked, same_vector,
};

use crate::device::cpu::element::FloatType;
use crate::device::cpu::gemm::affine::exact::dequantize;
use crate::device::cpu::gemm::case::RowClass;
use crate::device::cpu::gemm::fp8::{Fp8Matrix, ScaleType};
use crate::device::cpu::gemm::product::Gemm;
use crate::device::cpu::gemm::table::choose;
use crate::device::cpu::gemm::weight::{
    Acts, AffineMatrix, Bits, Coded, Decode, InPlace, Matrix, Weight,
};
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::options::{Numerics, Precision};

/// A matrix `[rows, columns]` that stays as it is stored, whose tensors have the sizes that go
/// with it.
pub(crate) struct StoredMatrix {
    rows: usize,
    columns: usize,
    encoding: Encoding,
    /// Its tensors, in the order of [`Encoding::parts`].
    parts: Vec<MappedTensor>,
    /// The codes of activations beside it, where products are of whole numbers.
    acts: Acts,
    /// Whether its scales are ones that the kernel of its encoding takes; if not, it is decoded.
    is_taken: bool,
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
        let MappedMatrix { encoding, parts } = matrix;
        let rows = parts.first().and_then(|weight| weight.shape().first()).copied().unwrap_or(0);
        let Some(specs) = encoding.parts([rows, columns as u64]) else {
            return Err(Error::NotWholeGroups { name: name.to_owned(), columns, encoding });
        };
        if specs.len() != parts.len() {
            let (expected, found) = (specs.len(), parts.len());
            return Err(Error::WrongParts { name: name.to_owned(), encoding, expected, found });
        }
        for (spec, tensor) in specs.iter().zip(&parts) {
            if !spec.types.contains(&tensor.dtype()) {
                let (name, dtype) = (name.to_owned(), tensor.dtype());
                return Err(Error::UnsupportedDtype { name, dtype });
            }
            check_shape(name, tensor, &spec.shape)?;
            check_length(name, tensor)?;
        }
        // What may have several types has one in all parts.
        let free = |(spec, part): (&PartSpec, &MappedTensor)| {
            (spec.types.len() > 1).then_some(part.dtype())
        };
        let mut types = specs.iter().zip(&parts).filter_map(free);
        let first = types.next();
        if let Some(dtype) = types.find(|dtype| Some(*dtype) != first) {
            return Err(Error::UnsupportedDtype { name: name.to_owned(), dtype });
        }
        let is_taken = match (encoding, &parts[..]) {
            (Encoding::Fp8(_), [_, scales]) => ScaleType::of(scales.dtype()).takes(scales.bytes()),
            _ => true,
        };
        let acts = Acts::Words;
        Ok(StoredMatrix { rows: rows as usize, columns, encoding, parts, acts, is_taken })
    }

    /// The same beside activations that may be rounded to `precision`: where 8 bits are enough, [`Numerics::Int8`] leaves no
    /// more of them, if codes are narrow.
    pub(crate) fn beside(mut self, precision: Precision, numerics: Numerics) -> StoredMatrix {
        let is_coarse = numerics == Numerics::Int8 && precision.is_coarse();
        self.acts = if is_coarse && self.is_narrow() { Acts::Bytes } else { Acts::Words };
        self
    }

    /// Whether it is codes below 64.
    fn is_narrow(&self) -> bool {
        self.encoding.largest_code() < 64
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of one row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// How it is stored.
    #[cfg(feature = "candle")]
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The kernel of this processor for products with the matrix.
    pub(crate) fn gemm(&self, tier: Tier, numerics: Numerics, rows: RowClass) -> &'static dyn Gemm {
        choose(tier, self.weight(0..self.rows).encoding(), rows, numerics)
    }

    /// Some rows, widened: `[rows, columns]`.
    pub(crate) fn widen(&self, tier: Tier, rows: Range<usize>) -> Vec<f32> {
        match self.weight(rows.clone()) {
            Weight::Float(matrix) => matrix.float.widen(matrix.bytes),
            Weight::Affine(matrix) => dequantize(tier, matrix),
            Weight::Fp8(_) | Weight::Coded(_) => self.decode(rows),
        }
    }

    /// Some rows turned into columns, `[columns, rows]`, in memory of its own: the same numbers where they are stored as
    /// such, else f32. [`copied_bytes`](crate::copied_bytes) counts it.
    ///
    /// # Errors
    /// [`Error::WeightMemory`] if there is no memory for it.
    pub(crate) fn transposed(&self, rows: Range<usize>) -> Result<StoredMatrix, Error> {
        let (count, columns) = (rows.len(), self.columns);
        let float = match self.encoding {
            Encoding::Float(float) => float,
            _ => cake_checkpoint::FloatType::F32,
        };
        let width = float.bytes();
        let bytes = count.saturating_mul(columns).saturating_mul(width);
        let refused = |source| Error::WeightMemory { bytes: bytes as u64, source };
        let mut memory = Memory::zeroed(bytes).map_err(refused)?;
        // A row at a time, so that no more than one is there twice.
        for (index, row) in rows.enumerate() {
            let numbers = match self.encoding {
                Encoding::Float(_) => Cow::Borrowed(self.stored(row..row + 1)),
                _ => {
                    let numbers = self.decode(row..row + 1).into_iter();
                    Cow::Owned(numbers.flat_map(f32::to_le_bytes).collect())
                }
            };
            let columns = memory.chunks_mut((count * width).max(1));
            for (column, number) in columns.zip(numbers.chunks_exact(width)) {
                column[index * width..][..width].copy_from_slice(number);
            }
        }
        let shape = vec![columns as u64, count as u64];
        let part = MappedTensor::from_memory(memory, float.dtype(), shape).map_err(refused)?;
        let (encoding, parts) = (Encoding::Float(float), vec![part]);
        Ok(StoredMatrix {
            rows: columns,
            columns: count,
            encoding,
            parts,
            acts: Acts::Words,
            is_taken: true,
        })
    }

    /// Some rows as the encoding defines them, `[rows, columns]`: slower than [`StoredMatrix::widen`], by no kernel of a
    /// processor.
    pub(crate) fn decode(&self, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() * self.columns];
        Decode::decode(self, rows, &mut out);
        out
    }

    /// What codecs are given for some rows: of each part the type and the bytes.
    fn parts_of(&self, rows: Range<usize>) -> Vec<(Dtype, &[u8])> {
        let bytes = |part| &MappedTensor::bytes(part)[self.of_rows(part, rows.clone())];
        self.parts.iter().map(|part| (part.dtype(), bytes(part))).collect()
    }

    /// Where some rows lie in the matrix.
    fn at(&self, rows: &Range<usize>) -> RowsAt {
        RowsAt { first: rows.start, columns: self.columns }
    }

    /// Where some rows lie in a part.
    fn of_rows(&self, part: &MappedTensor, rows: Range<usize>) -> Range<usize> {
        match part.shape() {
            [all, _] if *all == self.rows as u64 => {
                let row = part.bytes().len() / self.rows.max(1);
                row * rows.start..row * rows.end
            }
            _ => 0..part.bytes().len(), // One for all rows.
        }
    }

    /// Some rows, as kernels take them.
    pub(crate) fn weight(&self, rows: Range<usize>) -> Weight<'_> {
        match (self.encoding, &self.parts[..]) {
            (Encoding::Float(float), [weight]) => {
                let float = FloatType::from(float);
                let row_bytes = self.columns * float.bytes();
                let bytes = &weight.bytes()[rows.start * row_bytes..rows.end * row_bytes];
                Weight::Float(Matrix { bytes, float, inputs: self.columns })
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
                    inputs: self.columns,
                };
                Weight::Affine(matrix.rows(rows))
            }
            (Encoding::Fp8(format), [numbers, scales]) if self.is_taken => Weight::Fp8(Fp8Matrix {
                numbers: &numbers.bytes()[self.of_rows(numbers, rows.clone())],
                scales: scales.bytes(),
                scale: ScaleType::of(scales.dtype()),
                shared: format.shared().map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
                first: rows.start,
                inputs: self.columns,
            }),
            (Encoding::Float(_), _) => {
                unreachable!("checked when the matrix was made: it has the parts of its encoding")
            }
            _ => Weight::Coded(self.coded(rows)),
        }
    }

    /// Some rows of a matrix that is neither numbers nor codes of a byte or half of one, as kernels take them.
    fn coded(&self, rows: Range<usize>) -> Coded<'_> {
        let bytes = |part| &MappedTensor::bytes(part)[self.of_rows(part, rows.clone())];
        let mut coded = Coded {
            matrix: self,
            first: rows.start,
            outputs: rows.len(),
            inputs: self.columns,
            bytes: bytes(&self.parts[0]),
            group: self.encoding.unpacked_group(self.columns),
            is_narrow: self.is_narrow(),
            acts: self.acts,
            in_place: None,
            scales: &[],
            biases: &[],
            float: FloatType::F32,
            divisor: None,
        };
        match (self.encoding, &self.parts[..]) {
            (Encoding::Ggml(kind), _) => coded.in_place = Some(InPlace::Blocks(kind)),
            (Encoding::Affine(format), [_, scales, biases]) => {
                coded.in_place = Some(InPlace::Stream { bits: format.bits() });
                (coded.scales, coded.biases) = (bytes(scales), bytes(biases));
                let float = FloatType::of(scales.dtype());
                coded.float = float.expect("checked when the matrix was made");
            }
            (Encoding::Fp4(kind), [_, scales, divisors @ ..]) => {
                coded.in_place = Some(InPlace::Fp4(kind));
                coded.scales = bytes(scales);
                coded.divisor = divisors.first().map(|divisor| {
                    let bytes = divisor.bytes().first_chunk();
                    f32::from_le_bytes(*bytes.expect("checked when the matrix was made: one F32"))
                });
            }
            _ => {}
        }
        coded
    }

    /// Some rows as they are stored, codes without their scales and biases.
    pub(crate) fn stored(&self, rows: Range<usize>) -> &[u8] {
        self.weight(rows).bytes()
    }
}

impl Decode for StoredMatrix {
    fn decode(&self, rows: Range<usize>, out: &mut [f32]) {
        self.encoding.decode_rows(self.at(&rows), &self.parts_of(rows), out);
    }

    fn unpack(&self, rows: Range<usize>, out: Unpacked<'_>) {
        self.encoding.unpack_rows(self.at(&rows), &self.parts_of(rows), out);
    }
}

/// The kernel type of a tensor, whose length is checked against its shape.
pub(crate) fn float_type(name: &str, tensor: &MappedTensor) -> Result<FloatType, Error> {
    let dtype = tensor.dtype();
    let float = FloatType::of(dtype)
        .ok_or_else(|| Error::UnsupportedDtype { name: name.to_owned(), dtype })?;
    check_length(name, tensor)?;
    Ok(float)
}

/// Refuses a tensor whose bytes are not as many as its type and shape say.
fn check_length(name: &str, tensor: &MappedTensor) -> Result<(), Error> {
    let expected = tensor.dtype().tensor_bytes(tensor.shape()).unwrap_or(u64::MAX);
    let found = tensor.bytes().len() as u64;
    if expected != found {
        return Err(Error::WrongLength { name: name.to_owned(), expected, found });
    }
    Ok(())
}

/// A vector of `width` values, widened.
pub(crate) fn vector(name: &str, tensor: &MappedTensor, width: usize) -> Result<Vec<f32>, Error> {
    numbers(name, tensor, &[width as u64])
}

/// The numbers of the tensor `name`, of this shape; a vector may have axes of 1.
pub(crate) fn numbers(name: &str, tensor: &MappedTensor, shape: &[u64]) -> Result<Vec<f32>, Error> {
    if !same_vector(tensor.shape(), shape) {
        check_shape(name, tensor, shape)?;
    }
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
