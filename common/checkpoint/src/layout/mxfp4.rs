//! MXFP4, as gpt-oss is published (`quant_method` `mxfp4`): of all experts of a layer `P_blocks` U8
//! `[experts, rows, groups, 16]` and `P_scales` U8 `[experts, rows, groups]`, rows of gate and up in turn. All else is plain.

use super::format::Layout;
use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, Fp4, Part};
use crate::error::Error;

/// Bytes of a group.
const BLOCK: u64 = 16;

/// The layout of `mxfp4`.
pub(super) struct Mxfp4Files;

impl Layout for Mxfp4Files {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[("_blocks", Word::Part(Part::Weight)), ("_scales", Word::Part(Part::Scales))]
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let mut weight = module.take(Part::Weight)?;
        let mut scales = module.take(Part::Scales)?;
        // Blocks of another length stay as they are: an axis too many, which is refused.
        if let [outer @ .., groups, BLOCK] = &weight.shape[..] {
            // No more than the tensor has.
            weight.shape = [outer, &[groups.saturating_mul(BLOCK)]].concat();
        }
        if scales.dtype == Dtype::U8 {
            scales.dtype = Dtype::F8E8M0;
        }
        weight.encoding = Some(Encoding::Fp4(Fp4::Mx));
        Ok(vec![weight, scales])
    }
}
