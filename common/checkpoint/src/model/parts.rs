//! What operations are made of: linear layers, norms, and the tensors that they have.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A name as a checkpoint has it: of this program, or from a peer.
pub type Name = Cow<'static, str>;

/// A norm over the last axis, with a weight for each value, and perhaps a bias.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormSpec {
    /// Its module, below the layer (or the whole name of an outer one, without `.weight`).
    pub path: Name,
    /// What it does.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: NormKind,
    /// Values that are normalised together.
    pub width: usize,
    /// Added to the mean square, or to the variance.
    pub eps: f64,
    /// Added to the stored weight: 1 where a checkpoint stores how far the weight is from one, else 0.
    pub offset: f32,
    /// Whether its module has a bias, `[width]`, which is added in the end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bias: bool,
}

/// What a norm does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NormKind {
    /// Values are divided by the root of their mean square (arXiv:1910.07467).
    #[default]
    Rms,
    /// Their mean is subtracted, then they are divided by their standard deviation (arXiv:1607.06450).
    Layer,
}

/// A linear layer as it is stored: a matrix `[stored_rows, inputs]`, of which `rows` are this layer's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearSpec {
    /// Its module, below the layer.
    pub path: Name,
    /// Rows of the stored matrix.
    pub stored_rows: usize,
    /// Its own rows: the outputs.
    pub rows: Range<usize>,
    /// Columns.
    pub inputs: usize,
    /// Whether the module has a bias, `[stored_rows]`.
    pub bias: bool,
}

/// Several linear layers of the same input, in modules of their own or behind each other in one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "snake_case",
    deny_unknown_fields,
    bound(serialize = "[Name; N]: Serialize", deserialize = "[Name; N]: Deserialize<'de>")
)]
pub enum Joined<const N: usize> {
    /// A module each.
    Separate([Name; N]),
    /// Rows of one module, in order.
    Fused(Name),
}

/// A tensor that a layer has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// Its module, below the layer.
    pub path: Name,
    /// What of the module it is.
    pub kind: TensorKind,
    /// As it is if it is not packed.
    pub shape: Vec<u64>,
}

/// What of its module a tensor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorKind {
    /// The weight of a linear layer, which may be packed.
    Matrix,
    /// The weight of a norm.
    Vector,
    /// What a linear layer or a norm adds.
    Bias,
    /// Numbers that belong to no module: the path is all of the name.
    Parameter,
}

/// Whether a field is as it is where nobody says it.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl NormSpec {
    /// Its weight.
    pub(super) fn weight(&self) -> TensorSpec {
        self.tensor(TensorKind::Vector)
    }

    /// Its bias, if it has one.
    pub(super) fn bias(&self) -> Option<TensorSpec> {
        self.bias.then(|| self.tensor(TensorKind::Bias))
    }

    /// Its weight, and its bias if it has one.
    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorSpec> + use<> {
        [self.weight()].into_iter().chain(self.bias())
    }

    fn tensor(&self, kind: TensorKind) -> TensorSpec {
        TensorSpec { path: self.path.clone(), kind, shape: vec![self.width as u64] }
    }
}

impl LinearSpec {
    /// Its matrix, and its bias if it has one.
    pub(super) fn tensors(self) -> impl Iterator<Item = TensorSpec> {
        let (rows, inputs) = (self.stored_rows as u64, self.inputs as u64);
        let (kind, shape) = (TensorKind::Bias, vec![rows]);
        let bias = self.bias.then(|| TensorSpec { path: self.path.clone(), kind, shape });
        let (kind, shape) = (TensorKind::Matrix, vec![rows, inputs]);
        [TensorSpec { path: self.path, kind, shape }].into_iter().chain(bias)
    }
}

impl TensorSpec {
    /// What its name ends in, after the path of its module.
    pub fn ending(&self) -> &'static str {
        match self.kind {
            TensorKind::Matrix | TensorKind::Vector => ".weight",
            TensorKind::Bias => ".bias",
            TensorKind::Parameter => "",
        }
    }

    /// The rest of its name, after what names the layer.
    pub fn leaf(&self) -> String {
        format!("{}{}", self.path, self.ending())
    }
}

impl<const N: usize> Joined<N> {
    /// The linear layers with so many outputs each.
    pub(super) fn linears(
        &self,
        outputs: [usize; N],
        inputs: usize,
        bias: bool,
    ) -> [LinearSpec; N] {
        let all = outputs.iter().sum();
        std::array::from_fn(|index| {
            let start = outputs[..index].iter().sum();
            match self {
                Joined::Separate(paths) => LinearSpec {
                    path: paths[index].clone(),
                    stored_rows: outputs[index],
                    rows: 0..outputs[index],
                    inputs,
                    bias,
                },
                Joined::Fused(path) => LinearSpec {
                    path: path.clone(),
                    stored_rows: all,
                    rows: start..start + outputs[index],
                    inputs,
                    bias,
                },
            }
        })
    }
}

/// Whether a tensor is the vector that is expected, but for axes of 1, which programs write or do not.
pub fn same_vector(found: &[u64], expected: &[u64]) -> bool {
    let of_one =
        |shape: &[u64]| shape.iter().copied().filter(|axis| *axis != 1).collect::<Vec<_>>();
    expected.len() == 1 && of_one(found) == of_one(expected)
}

/// A tensor of one axis that belongs to no module.
pub(super) fn parameter(name: &Name, width: u64) -> TensorSpec {
    TensorSpec { path: name.clone(), kind: TensorKind::Parameter, shape: vec![width] }
}

pub(super) fn linear(path: &Name, outputs: usize, inputs: usize, bias: bool) -> LinearSpec {
    LinearSpec { path: path.clone(), stored_rows: outputs, rows: 0..outputs, inputs, bias }
}
