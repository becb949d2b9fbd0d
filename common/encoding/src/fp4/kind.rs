//! Which kinds of numbers of 4 bits there are.

use std::fmt;

use crate::dtype::Dtype;

/// A kind of numbers of 4 bits behind scales.
///
/// A matrix `P` of `[rows, columns]` is `P.weight` U8 `[rows, columns / 2]`, of each byte first the lower half; `P.scales`
/// `[rows, columns / group]`; and perhaps `P.global` F32 `[1]`, which divides or multiplies the scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fp4 {
    /// 32 weights to a power of two.
    Mx,
    /// 16 weights to an E4M3.
    Nv,
    /// The same, with scales divided by one number, as compressed-tensors writes it.
    NvDivided,
    /// The same, with scales multiplied by one number, as NVIDIA's Model Optimizer writes it.
    NvMultiplied,
}

impl Fp4 {
    /// All of them.
    pub const ALL: [Fp4; 4] = [Fp4::Mx, Fp4::Nv, Fp4::NvDivided, Fp4::NvMultiplied];

    /// Its name in tags.
    pub const fn name(self) -> &'static str {
        match self {
            Fp4::Mx => "mxfp4",
            Fp4::Nv => "nvfp4",
            Fp4::NvDivided => "nvfp4-divided",
            Fp4::NvMultiplied => "nvfp4-multiplied",
        }
    }

    /// Weights that share a scale.
    pub const fn group(self) -> usize {
        match self {
            Fp4::Mx => 32,
            Fp4::Nv | Fp4::NvDivided | Fp4::NvMultiplied => 16,
        }
    }

    /// Element type of scales.
    pub const fn scale(self) -> Dtype {
        match self {
            Fp4::Mx => Dtype::F8E8M0,
            Fp4::Nv | Fp4::NvDivided | Fp4::NvMultiplied => Dtype::F8E4M3,
        }
    }

    /// Whether one number of the matrix divides or multiplies all scales.
    pub const fn has_global(self) -> bool {
        matches!(self, Fp4::NvDivided | Fp4::NvMultiplied)
    }
}

impl fmt::Display for Fp4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
