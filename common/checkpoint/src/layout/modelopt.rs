//! Matrices as NVIDIA's Model Optimizer stores them: numbers of a byte in `P.weight` behind `P.weight_scale` (its algorithms
//! `FP8`, `FP8_PER_CHANNEL_PER_TOKEN`, `FP8_PB_WO` and `MXFP8`), or NVFP4: pairs in `P.weight`, their scales in `P.weight_scale`,
//! which `P.weight_scale_2` multiplies. Scales of activations, and of keys and values in a byte, change no weight.

use super::format::Layout;
use super::fp8::fp8;
use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, Fp4, Fp8, Part};
use crate::error::Error;

/// The layout of `modelopt`. Tensors say which matrices are stored so, and which way.
pub(super) struct ModelOptFiles {
    /// The blocks of numbers of a byte that the configuration says; `None` where each row or each matrix has a scale.
    pub(super) blocks: Option<Fp8>,
}

impl Layout for ModelOptFiles {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight", Word::Part(Part::Weight)),
            (".weight_scale", Word::Part(Part::Scales)),
            (".weight_scale_2", Word::Part(Part::Global)),
            (".input_scale", Word::Beside),
            (".output_scale", Word::Beside),
            (".q_scale", Word::Beside),
            (".k_scale", Word::Beside),
            (".v_scale", Word::Beside),
        ]
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let dtype = module.part(Part::Weight).map(|weight| weight.dtype);
        if dtype == Some(Dtype::U8) || module.has(Part::Global) {
            let mut weight = module.take(Part::Weight)?;
            weight.encoding = Some(Encoding::Fp4(Fp4::NvMultiplied));
            let (mut scales, mut global) = (module.take(Part::Scales)?, module.take(Part::Global)?);
            if scales.dtype == Dtype::U8 {
                scales.dtype = Dtype::F8E4M3;
            }
            if global.shape.is_empty() {
                global.shape = vec![1];
            }
            return Ok(vec![weight, scales, global]);
        }
        if dtype == Some(Dtype::F8E4M3) || module.has(Part::Scales) {
            let mut parts = fp8(module, self.blocks)?;
            for part in &mut parts {
                // Blocks of rows and of columns, each with an axis for what is inside of one.
                if let &[rows, 1, columns, 1] = &part.shape[..] {
                    part.shape = vec![rows, columns];
                }
            }
            return Ok(parts);
        }
        Ok(module.unchanged_parts())
    }
}
