//! Activations, and what kernels make of them: once for all products with the same activations.

use std::cell::OnceCell;

use crate::device::cpu::gemm::affine;
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::gemm::{amx, panel};

/// Rows of activations, `[rows, inputs]`, that matrices stored in one way are multiplied with, in one
/// precision: memory is planned for one of the forms below.
#[derive(Default)]
pub(crate) struct Inputs<'a> {
    /// The activations.
    x: &'a [f32],
    /// As the f32 kernel takes them beside bf16.
    pub(super) paired: OnceCell<Vec<f32>>,
    /// As the kernels for packed weights take them.
    pub(super) quantized: OnceCell<affine::Quantized>,
    /// As the kernel of processors with products of bf16 pairs takes them.
    #[cfg(target_arch = "x86_64")]
    pub(super) paneled: OnceCell<panel::Activations>,
    /// As the kernel of processors with tile registers takes them.
    #[cfg(target_arch = "x86_64")]
    pub(super) split: OnceCell<amx::float::Activations>,
    /// As that kernel takes generated rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) few: OnceCell<amx::float::FewActivations>,
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
