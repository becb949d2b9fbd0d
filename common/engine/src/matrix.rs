//! A weight matrix as it is stored, plain or packed, checked once.

use std::borrow::Cow;
use std::ops::Range;

use cake_checkpoint::{
    Dtype, Encoding, FloatType, MappedMatrix, MappedTensor, Memory, PartSpec, RowsAt, Unpacked,
    same_vector,
};

use crate::error::Error;

/// A matrix `[rows, columns]` that stays as it is stored, whose tensors have the sizes that go
/// with it.
pub(crate) struct StoredMatrix {
    rows: usize,
    columns: usize,
    encoding: Encoding,
    /// Its tensors, in the order of [`Encoding::parts`].
    parts: Vec<MappedTensor>,
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
        Ok(StoredMatrix { rows: rows as usize, columns, encoding, parts })
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
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
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
            _ => FloatType::F32,
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
        Ok(StoredMatrix { rows: columns, columns: count, encoding, parts })
    }

    /// Some rows as the encoding defines them, `[rows, columns]`, by no kernel of a device.
    pub(crate) fn decode(&self, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() * self.columns];
        self.decode_into(rows, &mut out);
        out
    }

    /// The same into `out`.
    pub(crate) fn decode_into(&self, rows: Range<usize>, out: &mut [f32]) {
        self.encoding.decode_rows(self.at(&rows), &self.parts_of(rows), out);
    }

    /// Fills `out` with some rows as codes of a byte, and a scale and a bias for each group.
    ///
    /// # Panics
    /// If the encoding has no such form.
    pub(crate) fn unpack_into(&self, rows: Range<usize>, out: Unpacked<'_>) {
        self.encoding.unpack_rows(self.at(&rows), &self.parts_of(rows), out);
    }

    /// Its tensors, in the order of [`Encoding::parts`].
    pub(crate) fn parts(&self) -> &[MappedTensor] {
        &self.parts
    }

    /// The bytes of some rows in one of its tensors; all of them where that has none for each row.
    pub(crate) fn part_of<'a>(&self, part: &'a MappedTensor, rows: &Range<usize>) -> &'a [u8] {
        match part.shape() {
            [all, _] if *all == self.rows as u64 => {
                let row = part.bytes().len() / self.rows.max(1);
                &part.bytes()[row * rows.start..row * rows.end]
            }
            _ => part.bytes(), // One for all rows.
        }
    }

    /// Some rows as they are stored, codes without their scales and biases.
    pub(crate) fn stored(&self, rows: Range<usize>) -> &[u8] {
        self.part_of(&self.parts[0], &rows)
    }

    /// What codecs are given for some rows: of each part the type and the bytes.
    fn parts_of(&self, rows: Range<usize>) -> Vec<(Dtype, &[u8])> {
        self.parts.iter().map(|part| (part.dtype(), self.part_of(part, &rows))).collect()
    }

    /// Where some rows lie in the matrix.
    fn at(&self, rows: &Range<usize>) -> RowsAt {
        RowsAt { first: rows.start, columns: self.columns }
    }
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
    let dtype = tensor.dtype();
    let float = FloatType::of(dtype)
        .ok_or_else(|| Error::UnsupportedDtype { name: name.to_owned(), dtype })?;
    check_length(name, tensor)?;
    let mut numbers = vec![0.0; tensor.bytes().len() / float.bytes()];
    float.widen(tensor.bytes(), &mut numbers);
    Ok(numbers)
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
