//! The list of layouts.

use super::{Layout, Mlx};

/// How files name and lay out the tensors of packed matrices: which of the ways to, and what a configuration says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packing {
    /// As MLX does.
    Mlx(Mlx),
}

impl Packing {
    /// What is known of it.
    pub(crate) fn layout(&self) -> &dyn Layout {
        match self {
            Packing::Mlx(layout) => layout,
        }
    }
}
