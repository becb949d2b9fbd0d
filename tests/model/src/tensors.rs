//! The tensors of a made-up model, in the order of its file.
use cake_checkpoint::{Affine, Dtype, ModelSpec, TensorKind, TensorSpec};

use super::shape::ModelShape;

/// How far norm weights lie from 1.
const NORM_SPREAD: f32 = 0.1;
/// How far scales and biases of a packed matrix lie from their middle, as a part of it.
const PARAM_SPREAD: f32 = 0.1;

/// How far weights of convolutions lie from 0.
const CONVOLUTION_SPREAD: f32 = 0.5;

#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Uniform in `centre` ± `spread`.
    Numbers { centre: f32, spread: f32 },
    /// Random bytes.
    Codes,
    /// Random bytes with small bits alone: whatever numbers they are read as, these are finite and small.
    Small,
    /// These bytes.
    Bytes(Vec<u8>),
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|axis| *axis as u64).product()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.dtype.bits() / 8 * self.elements()
    }
}

/// The tensors of all layers, as a specification has them: name, kind and shape.
pub(super) fn of_layers(model: &ModelSpec) -> Vec<(String, TensorKind, Vec<u64>)> {
    let layers = model.layers.iter().enumerate();
    let tensors = layers.flat_map(|(number, layer)| {
        let named =
            move |it: TensorSpec| (model.layer_tensor_name(number, &it.leaf()), it.kind, it.shape);
        layer.tensors().into_iter().map(named)
    });
    tensors.collect()
}

impl ModelShape {
    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Bytes of one layer's tensors.
    pub fn layer_bytes(&self) -> u64 {
        let prefix = "model.layers.0.";
        let tensors = self.tensors();
        let layer = tensors.iter().filter(|tensor| tensor.name.starts_with(prefix));
        layer.map(Tensor::bytes).sum()
    }

    /// All tensors in the order of the file: what the specification of such a configuration says.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let config = self.config().to_string();
        let model = ModelSpec::parse(config.as_bytes()).expect("a configuration that runs");
        let mut outer = model.outer_tensors().into_iter();
        let embedding = outer.next();
        let all = embedding.into_iter().chain(of_layers(&model)).chain(outer);
        all.flat_map(|(name, kind, shape)| self.stored(name, kind, &shape)).collect()
    }

    /// What a tensor is stored in. Norms are near one, and matrices keep the size of what they are applied to about
    /// the same.
    fn stored(&self, name: String, kind: TensorKind, shape: &[u64]) -> Vec<Tensor> {
        match (kind, shape) {
            (TensorKind::Matrix, &[rows, columns]) => {
                self.matrix(name, rows as usize, columns as usize)
            }
            // What is forgotten of a position is little: half of it is there after some to some hundred others.
            (TensorKind::Parameter, _) if name.ends_with(".dt_bias") => {
                vec![self.numbers(name, shape, -4.0, 2.0)]
            }
            (TensorKind::Parameter, [_, _, _]) => {
                vec![self.numbers(name, shape, 0.0, CONVOLUTION_SPREAD)]
            }
            (TensorKind::Bias | TensorKind::Parameter, _) => {
                vec![self.numbers(name, shape, 0.0, NORM_SPREAD)]
            }
            _ => vec![self.numbers(name, shape, 1.0, NORM_SPREAD)],
        }
    }

    fn numbers(&self, name: String, shape: &[u64], centre: f32, spread: f32) -> Tensor {
        let shape = shape.iter().map(|axis| *axis as usize).collect();
        Tensor { name, dtype: self.dtype, shape, content: Content::Numbers { centre, spread } }
    }

    /// A matrix, plain or packed.
    fn matrix(&self, name: String, rows: usize, columns: usize) -> Vec<Tensor> {
        let bound = (1.0 / columns as f32).sqrt();
        let Some(format) = self.packed else {
            return vec![self.numbers(name, &[rows as u64, columns as u64], 0.0, bound)];
        };
        let module =
            name.strip_suffix(".weight").expect("a matrix is a module's weight").to_owned();
        let largest = f32::from(Affine::largest_code(format));
        let param = |part: &str, centre: f32| {
            let shape = [rows as u64, (columns / format.group()) as u64];
            self.numbers(format!("{module}.{part}"), &shape, centre, PARAM_SPREAD * centre.abs())
        };
        let shape = vec![rows, columns * format.bits() / 32];
        vec![
            param("scales", 2.0 * bound / largest),
            param("biases", -bound),
            Tensor { name, dtype: Dtype::U32, shape, content: Content::Codes },
        ]
    }
}
