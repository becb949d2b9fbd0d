//! What layers are given of a token beside hidden states: each its own few numbers, which follow from the token's id and its
//! embedding, so that only who has these can make them. They travel behind the hidden states of a row.

use serde::{Deserialize, Serialize};

use super::spec::{Activation, LinearSpec, Name, NormSpec, TensorSpec, linear};

/// How the numbers that layers are given are made: `multiplier · (norm(m · projection(e)) + n · row)`, by the embedding `e` of a
/// token, multiplied as for the first layer, and its row of a table; layer by layer, each part with a norm of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenSpec {
    /// Numbers of each layer.
    pub width: usize,
    /// Module of the table, `[rows, layers × width]`.
    pub table: Name,
    /// Rows of the table; ids past the last one have the first.
    pub rows: usize,
    /// What a row is multiplied with.
    pub row_multiplier: f32,
    /// Module of the projection, `[layers × width, hidden_size]`.
    pub projection: Name,
    /// What its product is multiplied with.
    pub product_multiplier: f32,
    /// The norm of each layer's part of that.
    pub norm: NormSpec,
    /// What the sum of both is multiplied with.
    pub multiplier: f32,
}

/// What a layer makes of what it is given: `output(act(gate(x)) · given)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithGivenSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Numbers that a layer is given of a row.
    pub width: usize,
    /// Module of the gate.
    pub gate: Name,
    /// Of the gate.
    pub activation: Activation,
    /// Module of the output.
    pub output: Name,
}

impl GivenSpec {
    /// The table of a model of so many layers, as if it were multiplied with.
    pub fn table(&self, layers: usize) -> LinearSpec {
        linear(&self.table, self.rows, layers.saturating_mul(self.width), false)
    }

    /// The projection in a model of so many layers of this width.
    pub fn projection(&self, layers: usize, hidden_size: usize) -> LinearSpec {
        linear(&self.projection, layers.saturating_mul(self.width), hidden_size, false)
    }

    /// Its tensors in such a model, by whole names.
    pub(super) fn tensors(
        &self,
        layers: usize,
        hidden_size: usize,
    ) -> impl Iterator<Item = TensorSpec> {
        let linears = [self.table(layers), self.projection(layers, hidden_size)];
        linears.into_iter().flat_map(LinearSpec::tensors).chain(self.norm.tensors())
    }
}

impl WithGivenSpec {
    /// The gate.
    pub fn gate(&self) -> LinearSpec {
        linear(&self.gate, self.width, self.hidden_size, false)
    }

    /// The last projection.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.width, false)
    }
}
