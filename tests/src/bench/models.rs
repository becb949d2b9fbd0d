//! The model that most figures are about.
use cake_tests::ModelShape;

/// Name of the model that most figures are about.
pub(super) const ONE_B: &str = "llama-1b";
/// How many of its layers the first of two workers holds.
pub(super) const CUT: usize = 8;

/// Its shape: that of a Llama of one billion parameters, 2.3 GiB of bf16 in one file.
pub(super) fn one_b() -> ModelShape {
    ModelShape::llama_1b()
}
