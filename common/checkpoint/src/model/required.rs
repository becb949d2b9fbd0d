//! What a model cannot do without.

use super::spec::{LayerSpec, TensorKind};
use super::whole::ModelSpec;

/// A tensor the model cannot do without, if nothing is packed.
pub(crate) struct Required {
    /// Its full name.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: TensorKind,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Its layer; `None` outside the layers.
    pub(crate) layer: Option<usize>,
}

impl ModelSpec {
    /// Every tensor the model cannot do without: those outside the layers, then layer by layer.
    pub(crate) fn required_tensors(&self) -> Vec<Required> {
        let outer = self.outer_tensors().into_iter();
        let outer = outer.map(|(name, kind, shape)| Required { name, kind, shape, layer: None });
        let of_layer = |(layer, spec): (usize, &LayerSpec)| {
            spec.tensors().into_iter().map(move |tensor| Required {
                name: self.layer_tensor_name(layer, &tensor.leaf()),
                kind: tensor.kind,
                shape: tensor.shape,
                layer: Some(layer),
            })
        };
        outer.chain(self.layers.iter().enumerate().flat_map(of_layer)).collect()
    }
}
