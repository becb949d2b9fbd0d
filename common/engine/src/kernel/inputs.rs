//! Activations, and what kernels make of them: once for all products with the same activations.

use std::cell::OnceCell;

use super::affine;
#[cfg(target_arch = "x86_64")]
use super::{amx, panel};

/// Rows of activations that several matrices are multiplied with, `[rows, inputs]`.
#[derive(Default)]
pub(crate) struct Inputs<'a> {
    /// The activations.
    pub(super) x: &'a [f32],
    /// As the kernels for packed weights take them.
    pub(super) quantized: OnceCell<affine::Quantized>,
    /// As the kernel of processors with products of bf16 pairs takes them.
    #[cfg(target_arch = "x86_64")]
    pub(super) rounded: OnceCell<panel::Activations>,
    /// As the kernel of processors with tile registers takes them.
    #[cfg(target_arch = "x86_64")]
    pub(super) split: OnceCell<amx::Activations>,
}

impl<'a> Inputs<'a> {
    /// Rows for matrices whose rows have the same length.
    pub(crate) fn new(x: &'a [f32]) -> Inputs<'a> {
        Inputs { x, ..Inputs::default() }
    }

    /// The activations themselves.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.x
    }
}
