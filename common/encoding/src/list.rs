//! The list of codecs.

use super::affine::AffineCodec;
use super::apr::AprCodec;
use super::bnb::BnbCodec;
use super::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use super::encode_error::EncodeError;
use super::float::FloatCodec;
use super::float::FloatType;
use super::fp4::Fp4Codec;
use super::fp8::Fp8Codec;
use super::ggml::GgmlCodec;
use super::integer::IntegerCodec;
use super::part::PartSpec;
use super::tag::Encoding;
use crate::dtype::Dtype;

/// Every codec; the first that recognises a matrix has it.
pub static CODECS: &[&dyn Codec] = &[
    &AffineCodec,
    &GgmlCodec,
    &AprCodec,
    &IntegerCodec,
    &Fp8Codec,
    &Fp4Codec,
    &BnbCodec,
    &FloatCodec,
];

/// How the matrix of a module is stored; `None` if no codec knows.
pub fn recognise(module: &ModuleTensors<'_>, said: Option<ModuleFormat>) -> Option<Encoding> {
    CODECS.iter().find_map(|codec| codec.recognise(module, said))
}

impl Encoding {
    /// Every encoding.
    pub fn all() -> Vec<Encoding> {
        CODECS.iter().flat_map(|codec| codec.all()).collect()
    }

    /// What is known of it.
    pub fn codec(self) -> &'static dyn Codec {
        match self {
            Encoding::Float(_) => &FloatCodec,
            Encoding::Affine(_) => &AffineCodec,
            Encoding::Ggml(_) => &GgmlCodec,
            Encoding::Apr(_) => &AprCodec,
            Encoding::Fp8(_) => &Fp8Codec,
            Encoding::Fp4(_) => &Fp4Codec,
            Encoding::Integer(_) => &IntegerCodec,
            Encoding::Bnb(_) => &BnbCodec,
        }
    }

    /// As [`Codec::is_only_said`].
    pub fn is_only_said(self) -> bool {
        self.codec().is_only_said()
    }

    /// The tensors of a matrix of that shape, the weight first; `None` if there is no such matrix in this encoding.
    pub fn parts(self, shape: MatrixShape) -> Option<Vec<PartSpec>> {
        self.codec().parts(self, shape)
    }

    /// As [`Codec::columns`].
    pub fn columns(self, elements: u64) -> u64 {
        self.codec().columns(self, elements)
    }

    /// As [`Codec::decode_rows`].
    ///
    /// # Panics
    /// If the lengths do not belong together.
    pub fn decode_rows(self, at: RowsAt, parts: &[(Dtype, &[u8])], out: &mut [f32]) {
        self.codec().decode_rows(self, at, parts, out);
    }

    /// As [`Codec::unpacked_group`].
    pub fn unpacked_group(self, columns: usize) -> Option<usize> {
        self.codec().unpacked_group(self, columns)
    }

    /// As [`Codec::largest_code`].
    pub fn largest_code(self) -> u8 {
        self.codec().largest_code(self)
    }

    /// As [`Codec::unpack_rows`].
    ///
    /// # Panics
    /// As there.
    pub fn unpack_rows(self, at: RowsAt, parts: &[(Dtype, &[u8])], out: Unpacked<'_>) {
        self.codec().unpack_rows(self, at, parts, out);
    }

    /// As [`Codec::encoded_group`].
    pub fn encoded_group(self) -> Option<usize> {
        self.codec().encoded_group(self)
    }

    /// As [`Codec::encode`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn encode(
        self,
        weights: &[f32],
        counts: Option<&[f32]>,
        params: FloatType,
        out: &mut [Option<&mut [u8]>],
    ) -> Result<(), EncodeError> {
        self.codec().encode(self, weights, counts, params, out)
    }

    /// Bytes that a group of [`Encoding::encoded_group`] takes in each part, where scales and the like have the type
    /// `params`; nothing where no plain numbers are turned into this encoding.
    pub fn encoded_bytes(self, params: FloatType) -> Vec<usize> {
        let group = self.encoded_group().and_then(|group| self.parts([1, group as u64]));
        let bytes = |spec: PartSpec| spec.dtype(params.dtype()).tensor_bytes(&spec.shape);
        let parts = group.unwrap_or_default().into_iter();
        parts.map(|spec| bytes(spec).expect("a group is small") as usize).collect()
    }
}
