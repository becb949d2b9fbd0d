//! The list of codecs.

use super::affine::AffineCodec;
use super::apr::AprCodec;
use super::codec::{Codec, MatrixShape, ModuleFormat, ModuleTensors, RowsAt, Unpacked};
use super::float::FloatCodec;
use super::fp4::Fp4Codec;
use super::fp8::Fp8Codec;
use super::ggml::GgmlCodec;
use super::integer::IntegerCodec;
use super::part::PartSpec;
use super::tag::Encoding;
use crate::dtype::Dtype;

/// Every codec; the first that recognises a matrix has it.
pub static CODECS: &[&dyn Codec] =
    &[&AffineCodec, &GgmlCodec, &AprCodec, &IntegerCodec, &Fp8Codec, &Fp4Codec, &FloatCodec];

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
        }
    }

    /// The tensors of a matrix of that shape, the weight first; `None` if there is no such matrix in this encoding.
    pub fn parts(self, shape: MatrixShape) -> Option<Vec<PartSpec>> {
        self.codec().parts(self, shape)
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

    /// As [`Codec::unpack_rows`].
    ///
    /// # Panics
    /// As there.
    pub fn unpack_rows(self, at: RowsAt, parts: &[(Dtype, &[u8])], out: Unpacked<'_>) {
        self.codec().unpack_rows(self, at, parts, out);
    }
}
