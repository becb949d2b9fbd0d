//! Which layout files have.

use super::awq::Awq;
use super::gptq::Gptq;
use super::pack_quantized::PackQuantized;
use crate::encoding::Fp8;

/// How files name and lay out the tensors of packed matrices: which of the ways to, and what a configuration says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packing {
    /// As MLX does.
    Mlx,
    /// As DeepSeek, Qwen and Mistral do in `fp8`, in such blocks; without, each row or each matrix has a scale, as the scales
    /// say.
    Fp8(Option<Fp8>),
    /// As gpt-oss is published, in `mxfp4`.
    Mxfp4,
    /// As compressed-tensors does with floating-point numbers; those of a byte in such blocks, or as [`Packing::Fp8`].
    CompressedFloats(Option<Fp8>),
    /// As NVIDIA's Model Optimizer does; numbers of a byte in such blocks, or as [`Packing::Fp8`].
    ModelOpt(Option<Fp8>),
    /// As GPTQ does.
    Gptq(Gptq),
    /// As AWQ does.
    Awq(Awq),
    /// As bitsandbytes does in 4 bits.
    Bitsandbytes,
    /// As compressed-tensors does with whole numbers.
    PackQuantized(PackQuantized),
}
