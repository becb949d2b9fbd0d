//! As MLX has them: the names that everybody else knows are its names. Codes of other modes than `affine` are words of 32 bits
//! that hold numbers of a byte or of 4 bits, and their scales bytes.

use super::format::Layout;
use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, ModuleFormat, Part};
use crate::error::Error;

/// The layout of MLX.
pub(super) struct Mlx;

impl Layout for Mlx {
    fn words(&self) -> &'static [(&'static str, Word)] {
        const WORDS: [(&str, Word); 3] = [
            (Part::Weight.ending(), Word::Part(Part::Weight)),
            (Part::Scales.ending(), Word::Part(Part::Scales)),
            (Part::Biases.ending(), Word::Part(Part::Biases)),
        ];
        &WORDS
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let is_packed = module.has(Part::Scales)
            || module.part(Part::Weight).is_some_and(|weight| weight.dtype == Dtype::U32);
        let encoding = match module.said {
            ModuleFormat::Packed(encoding) => encoding,
            ModuleFormat::IfPacked(encoding) if is_packed => encoding,
            ModuleFormat::IfPacked(_) | ModuleFormat::Plain => return Ok(module.unchanged()),
        };
        let (numbers, scale) = match encoding {
            Encoding::Fp8(_) => (Dtype::F8E4M3, Dtype::F8E8M0),
            Encoding::Fp4(kind) => (Dtype::U8, kind.scale()),
            _ => return Ok(module.unchanged()),
        };
        let (mut weight, mut scales) = (module.take(Part::Weight)?, module.take(Part::Scales)?);
        if let (Dtype::U32, Some(words)) = (weight.dtype, weight.shape.last_mut()) {
            *words = words.saturating_mul(4); // No more than the tensor has.
            weight.dtype = numbers;
        }
        if scales.dtype == Dtype::U8 {
            scales.dtype = scale;
        }
        weight.encoding = Some(encoding);
        // Biases, which such a module has not, are refused by whoever knows what there should be.
        Ok([vec![weight, scales], module.unchanged()].concat())
    }
}
