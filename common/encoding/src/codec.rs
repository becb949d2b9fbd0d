//! What a codec is.

use super::encode_error::EncodeError;
use super::float::FloatType;
use super::part::{Part, PartSpec};
use super::tag::Encoding;
use crate::dtype::Dtype;

/// The two dimensions of a matrix: outputs, inputs.
pub type MatrixShape = [u64; 2];

/// Everything that is known of one kind of encoding. A codec is one file or folder beside this one, and a line in
/// [`CODECS`](super::CODECS).
pub trait Codec: Sync {
    /// Which of this codec's encodings a module's matrix is stored in; `None` if it is one of another codec's.
    ///
    /// `said` is what the configuration says of the module, if it says anything.
    fn recognise(&self, module: &ModuleTensors<'_>, said: Option<ModuleFormat>)
    -> Option<Encoding>;

    /// Whether nothing but a container, a layout or a manifest says that a matrix is stored so: [`Codec::recognise`] does not know
    /// it by its tensors, which look like any others.
    fn is_only_said(&self) -> bool {
        true
    }

    /// Every encoding of this kind.
    fn all(&self) -> Vec<Encoding>;

    /// The tensors of a matrix of that shape, the weight first; `None` if the encoding has no matrix of that shape.
    fn parts(&self, encoding: Encoding, shape: MatrixShape) -> Option<Vec<PartSpec>>;

    /// Weights of a row whose part of the weight's tensor has so many elements: as many as [`Codec::parts`] gives these to, where
    /// there is such a matrix.
    fn columns(&self, encoding: Encoding, elements: u64) -> u64;

    /// Fills `out` with the weights of whole rows that lie at `at`, whose bytes `parts` are, in the order of
    /// [`Codec::parts`]; of a part that has not as many rows as the matrix, because several rows share one of its, they are
    /// all bytes. Bytes may lie at any address. This is what the encoding means: kernels are compared with it.
    ///
    /// # Panics
    /// If the lengths do not belong together.
    fn decode_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: &mut [f32],
    );

    /// How many weights of rows of so many `columns` share a scale and a bias in [`Codec::unpack_rows`]: 16, 32, 64 or 128,
    /// whole groups to a row; `None` where weights are no codes of a byte.
    fn unpacked_group(&self, encoding: Encoding, columns: usize) -> Option<usize> {
        let _ = (encoding, columns);
        None
    }

    /// The largest code that [`Codec::unpack_rows`] writes.
    fn largest_code(&self, encoding: Encoding) -> u8 {
        let _ = encoding;
        u8::MAX
    }

    /// The weights of whole rows as codes of a byte, each the sum of its bias and of its code times its scale; they are those
    /// of [`Codec::decode_rows`] but for the rounding of a product and a sum. Kernels that multiply bytes take them so.
    ///
    /// # Panics
    /// If there is no [`Codec::unpacked_group`], or the lengths do not belong together.
    fn unpack_rows(
        &self,
        encoding: Encoding,
        at: RowsAt,
        parts: &[(Dtype, &[u8])],
        out: Unpacked<'_>,
    ) {
        let _ = (at, parts, out);
        panic!("weights in {encoding} are no codes of a byte");
    }

    /// How many neighbours of a row are encoded together in [`Codec::encode`]; `None` where no plain numbers are turned
    /// into this encoding.
    fn encoded_group(&self, encoding: Encoding) -> Option<usize> {
        let _ = encoding;
        None
    }

    /// Encodes whole groups of plain numbers; scales and the like have the type `params` where there is a choice. `counts`
    /// says of each weight how much its error counts beside those of others, for encodings that may choose; without it all
    /// count the same. For each part, in the order of [`Codec::parts`], `out` has just as many bytes as those groups take there, or nothing where
    /// nobody asks for the part. Equal weights and counts give equal bytes on every machine.
    ///
    /// # Errors
    /// [`EncodeError`] for a weight that is not finite, or that the encoding does not reach.
    ///
    /// # Panics
    /// If there is no [`Codec::encoded_group`], or the lengths do not belong together.
    fn encode(
        &self,
        encoding: Encoding,
        weights: &[f32],
        counts: Option<&[f32]>,
        params: FloatType,
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), EncodeError> {
        let _ = (weights, counts, params, out);
        panic!("nothing is turned into {encoding}");
    }
}

/// Where the weights of some rows go as codes of a byte.
pub struct Unpacked<'a> {
    /// A code per weight.
    pub codes: &'a mut [u8],
    /// A scale per group.
    pub scales: &'a mut [f32],
    /// A bias per group.
    pub biases: &'a mut [f32],
}

/// Where rows that are decoded lie in their matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsAt {
    /// The first of them, counted from the matrix's first.
    pub first: usize,
    /// Weights of a row.
    pub columns: usize,
}

impl RowsAt {
    /// Rows of so many weights from the matrix's first on.
    pub const fn start(columns: usize) -> RowsAt {
        RowsAt { first: 0, columns }
    }
}

/// The tensors of one module of a checkpoint.
pub struct ModuleTensors<'a> {
    /// The element type of a part, if the part is there.
    pub dtype: &'a dyn Fn(Part) -> Option<Dtype>,
}

/// What a configuration says of how a module's matrix is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModuleFormat {
    /// In this encoding if its tensors look like it, else as plain numbers.
    IfPacked(Encoding),
    /// In this encoding: the configuration names the module.
    Packed(Encoding),
    /// As plain numbers: the configuration names the module.
    Plain,
}
