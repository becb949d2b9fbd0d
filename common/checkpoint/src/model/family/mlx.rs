//! What families share whose files MLX has in another form.

use crate::model::fields::Fields;
use crate::model::spec::Op;
use crate::model::whole::ModelSpec;

/// Whether the files are in the form of MLX, which has some tensors otherwise: where it packed matrices, unless their names say
/// that another program did. Files in which it packed none are taken for the Hub's, and are refused by a shape or a name where
/// they are not.
pub(super) fn is_of_mlx(fields: &Fields<'_>) -> bool {
    fields.is_of_mlx
}

/// The model with convolutions as MLX has them.
pub(super) fn with_taps_first(mut model: ModelSpec) -> ModelSpec {
    fn turn(op: &mut Op) {
        match op {
            Op::ShortConvolution(it) => it.convolution.taps_first = true,
            Op::Delta(it) => it.convolutions.iter_mut().for_each(|it| it.taps_first = true),
            Op::Mamba(it) => it.convolution.taps_first = true,
            Op::Sum(ops) => ops.iter_mut().for_each(turn),
            Op::Normed(it) => turn(&mut it.op),
            _ => {}
        }
    }
    model.layers.iter_mut().flat_map(|layer| &mut layer.branches).for_each(|it| turn(&mut it.op));
    model
}
