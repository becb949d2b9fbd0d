//! Matrices as the library compressed-tensors stores them: numbers of a byte in `P.weight` behind `P.weight_scale` (its formats
//! `float-quantized` and `naive-quantized`), or NVFP4 (`nvfp4-pack-quantized`): pairs in `P.weight_packed`, their scales in
//! `P.weight_scale`, which `P.weight_global_scale` divides. Scales of activations change no weight.

use super::format::Layout;
use super::fp8::fp8;
use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, Fp4, Fp8, Part};
use crate::error::Error;

/// What the name of pairs of numbers of 4 bits ends in.
const PACKED: &str = ".weight_packed";

/// The layout of floating-point numbers of compressed-tensors. Tensors say which matrices are stored so, and which way.
pub(super) struct CompressedFloats {
    /// The blocks of numbers of a byte that the configuration says; `None` where each row or each matrix has a scale.
    pub(super) blocks: Option<Fp8>,
}

impl Layout for CompressedFloats {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight", Word::Part(Part::Weight)),
            (PACKED, Word::Part(Part::Weight)),
            (".weight_scale", Word::Part(Part::Scales)),
            (".weight_global_scale", Word::Part(Part::Global)),
            (".input_scale", Word::Beside),
            (".input_global_scale", Word::Beside),
            (".output_scale", Word::Beside),
            (".q_scale", Word::Beside),
            (".k_scale", Word::Beside),
            (".v_scale", Word::Beside),
        ]
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let weight = module.part(Part::Weight);
        let is_packed = weight.is_some_and(|weight| weight.name.ends_with(PACKED));
        if is_packed || module.has(Part::Global) {
            module.words = &[
                (PACKED, Word::Part(Part::Weight)),
                (".weight_scale", Word::Part(Part::Scales)),
                (".weight_global_scale", Word::Part(Part::Global)),
            ];
            let mut weight = module.take(Part::Weight)?;
            weight.encoding = Some(Encoding::Fp4(Fp4::NvDivided));
            let (scales, global) = (module.take(Part::Scales)?, module.take(Part::Global)?);
            return Ok(vec![weight, scales, global]);
        }
        let is_number = weight.is_some_and(|weight| weight.dtype == Dtype::F8E4M3);
        if is_number || module.has(Part::Scales) {
            return fp8(module, self.blocks);
        }
        Ok(module.unchanged_parts())
    }
}
