//! Numbers of a byte behind scales, as DeepSeek, Qwen and Mistral publish them (`quant_method` `fp8`): `P.weight`, and beside it
//! `P.weight_scale_inv`, which weights are multiplied with all the same; of older files `P.weight_scale`. How programs that
//! round activations scale these (`activation_scale`, `input_scale`) changes no weight.

use super::format::Layout;
use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, Fp8, Part};
use crate::error::Error;

/// The layout of `fp8`.
pub(super) struct Fp8Files {
    /// The blocks that the configuration says; `None` where each row or each matrix has a scale, as its scales say.
    pub(super) blocks: Option<Fp8>,
}

impl Layout for Fp8Files {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight", Word::Part(Part::Weight)),
            (".weight_scale_inv", Word::Part(Part::Scales)),
            (".weight_scale", Word::Part(Part::Scales)),
            (".activation_scale", Word::Beside),
            (".input_scale", Word::Beside),
            (".output_scale", Word::Beside),
            (".q_scale", Word::Beside),
            (".k_scale", Word::Beside),
            (".v_scale", Word::Beside),
        ]
    }

    fn canonical(&self, module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let is_number = module.part(Part::Weight).is_some_and(|it| it.dtype == Dtype::F8E4M3);
        if !is_number && !module.has(Part::Scales) {
            return Ok(module.unchanged_parts());
        }
        fp8(module, self.blocks)
    }
}

/// The two tensors of a matrix of numbers of a byte, in such blocks or else with a scale for each row or for all, as the
/// scales say.
///
/// # Errors
/// If one of them is not there.
pub(super) fn fp8(mut module: Module<'_>, blocks: Option<Fp8>) -> Result<Vec<StoredTensor>, Error> {
    let mut weight = module.take(Part::Weight)?;
    let mut scales = module.take(Part::Scales)?;
    let format = match (blocks, &scales.shape[..]) {
        (_, [] | [1]) => {
            scales.shape = vec![1];
            Fp8::Matrix
        }
        (Some(blocks), _) => blocks,
        (None, [rows]) => {
            scales.shape = vec![*rows, 1];
            Fp8::Row
        }
        (None, _) => Fp8::Row, // Of another shape it is refused as any part of another shape.
    };
    if scales.dtype == Dtype::U8 {
        scales.dtype = Dtype::F8E8M0;
    }
    weight.encoding = Some(Encoding::Fp8(format));
    Ok(vec![weight, scales])
}
