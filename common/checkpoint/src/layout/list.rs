//! The list of layouts.

use super::{Awq, Gptq, Layout, Mlx, PackQuantized};

/// How files name and lay out the tensors of packed matrices: which of the ways to, and what a configuration says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packing {
    /// As MLX does.
    Mlx(Mlx),
    /// As GPTQ does.
    Gptq(Gptq),
    /// As AWQ does.
    Awq(Awq),
    /// As compressed-tensors does with whole numbers.
    PackQuantized(PackQuantized),
}

impl Packing {
    /// What is known of it.
    pub(crate) fn layout(&self) -> &dyn Layout {
        match self {
            Packing::Mlx(layout) => layout,
            Packing::Gptq(layout) => layout,
            Packing::Awq(layout) => layout,
            Packing::PackQuantized(layout) => layout,
        }
    }
}
