//! The list of layouts.

use super::bitsandbytes::BitsandbytesFiles;
use super::compressed_tensors::CompressedFloats;
use super::format::Layout;
use super::fp8::Fp8Files;
use super::mlx::Mlx;
use super::modelopt::ModelOptFiles;
use super::mxfp4::Mxfp4Files;
use super::packing::Packing;

/// What is known of a layout.
pub(super) fn layout(packing: &Packing) -> Box<dyn Layout> {
    match packing {
        Packing::Mlx => Box::new(Mlx),
        Packing::Fp8(blocks) => Box::new(Fp8Files { blocks: *blocks }),
        Packing::Mxfp4 => Box::new(Mxfp4Files),
        Packing::CompressedFloats(blocks) => Box::new(CompressedFloats { blocks: *blocks }),
        Packing::ModelOpt(blocks) => Box::new(ModelOptFiles { blocks: *blocks }),
        Packing::Gptq(layout) => Box::new(layout.clone()),
        Packing::Awq(layout) => Box::new(layout.clone()),
        Packing::Bitsandbytes => Box::new(BitsandbytesFiles),
        Packing::PackQuantized(layout) => Box::new(layout.clone()),
    }
}
