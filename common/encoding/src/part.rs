//! The tensors that one matrix is stored in.

use crate::dtype::Dtype;

/// One of the tensors that a matrix is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Its numbers, or the codes of a packed matrix.
    Weight,
    /// The scales of a packed matrix.
    Scales,
    /// What a packed matrix adds to the products of scales and codes; not a layer's `bias`.
    Biases,
    /// Whole numbers that are taken off the codes before they are scaled.
    Zeros,
    /// One factor of all scales.
    Global,
    /// Which of its groups each column of a packed matrix belongs to.
    Groups,
    /// The scales of a packed matrix's scales,
    ScaleScales,
    /// what the codes of its scales mean,
    ScaleLevels,
    /// and what is added to each of its scales.
    ScaleOffset,
}

impl Part {
    /// Every part that an encoding may have, the weight first.
    pub const ALL: [Part; 9] = [
        Part::Weight,
        Part::Scales,
        Part::Biases,
        Part::Zeros,
        Part::Global,
        Part::Groups,
        Part::ScaleScales,
        Part::ScaleLevels,
        Part::ScaleOffset,
    ];

    /// What its name ends in, after the path of its module.
    pub const fn ending(self) -> &'static str {
        match self {
            Part::Weight => ".weight",
            Part::Scales => ".scales",
            Part::Biases => ".biases",
            Part::Zeros => ".zeros",
            Part::Global => ".global",
            Part::Groups => ".groups",
            Part::ScaleScales => ".scale_scales",
            Part::ScaleLevels => ".scale_levels",
            Part::ScaleOffset => ".scale_offset",
        }
    }

    /// The module's path and the part that a tensor of that name is.
    pub fn split(name: &str) -> Option<(&str, Part)> {
        Part::ALL.into_iter().find_map(|part| Some((name.strip_suffix(part.ending())?, part)))
    }
}

/// What one part of a matrix must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartSpec {
    /// Which one.
    pub part: Part,
    /// Element types that it may have.
    pub types: &'static [Dtype],
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The types, as a sentence for whoever has another one.
    pub must: &'static str,
}

impl PartSpec {
    /// Its element type where the numbers it is made from are of the type `numbers`: the only one it may have, or
    /// theirs.
    pub fn dtype(&self, numbers: Dtype) -> Dtype {
        match self.types {
            [only] => *only,
            _ => numbers,
        }
    }
}
