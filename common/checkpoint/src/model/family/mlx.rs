//! What families share whose files MLX has in another form.

use crate::model::fields::Fields;
use crate::model::spec::Op;
use crate::model::whole::ModelSpec;

/// Whether the files are of MLX, which has some tensors in another form: its configurations say so where it packed matrices.
/// Where it did not, its convolutions are refused by their shape.
pub(super) fn is_of_mlx(fields: &Fields<'_>) -> bool {
    fields.object("quantization").is_ok_and(|it| it.is_some())
}

/// The model with convolutions as MLX has them, but for those that are parts of sums.
pub(super) fn with_taps_first(mut model: ModelSpec) -> ModelSpec {
    for branch in model.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
        match &mut branch.op {
            Op::ShortConvolution(it) => it.convolution.taps_first = true,
            Op::Delta(it) => it.convolutions.iter_mut().for_each(|it| it.taps_first = true),
            Op::Mamba(it) => it.convolution.taps_first = true,
            _ => {}
        }
    }
    model
}
