//! Models of any shape with random weights, in memory.

use std::collections::HashMap;

use cake_checkpoint::{
    Dtype, Encoding, FloatType, LayerRange, MappedTensor, ModelSpec, Part, TensorKind, TensorSpec,
};
use cake_engine::{EngineOptions, Stage};

/// A model and the tensors of its layers, by name.
pub(crate) struct Made {
    pub(crate) model: ModelSpec,
    pub(crate) tensors: HashMap<String, MappedTensor>,
}

impl Made {
    /// The model with weights such that numbers stay as large as they are, its matrices stored as `encoding`, or as
    /// bf16 where that has none of their shape.
    pub(crate) fn new(model: ModelSpec, encoding: Encoding) -> Made {
        let mut tensors = HashMap::new();
        let mut random = Random(7);
        for (layer, spec) in model.layers.iter().enumerate() {
            for tensor in spec.tensors() {
                for (leaf, made) in random.tensor(&tensor, encoding) {
                    tensors.insert(model.layer_tensor_name(layer, &leaf), made);
                }
            }
        }
        Made { model, tensors }
    }

    /// A stage of all layers.
    pub(crate) fn stage(&self, options: &EngineOptions) -> Stage {
        let weights = |name: &str| self.tensors.get(name).cloned();
        let layers = LayerRange::new(0, self.model.layers.len());
        Stage::load(&self.model, layers, &weights, options).unwrap()
    }
}

/// Hidden states of some rows, each number in `[-1, 1)`.
pub(crate) fn hidden(rows: usize, width: usize) -> Vec<f32> {
    let mut random = Random(11);
    let mut hidden = Vec::with_capacity(rows * width);
    hidden.extend((0..rows * width).map(|_| random.signed()));
    hidden
}

/// A stream of numbers: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// In `[-1, 1)`.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// The tensors that this one is stored in.
    fn tensor(&mut self, spec: &TensorSpec, encoding: Encoding) -> Vec<(String, MappedTensor)> {
        match (spec.kind, &spec.shape[..]) {
            (TensorKind::Matrix, &[rows, columns]) => {
                self.matrix(&spec.path, [rows, columns], encoding)
            }
            (kind, _) => {
                let centre = if kind == TensorKind::Vector { 1.0 } else { 0.0 };
                vec![(spec.leaf(), self.numbers(&spec.shape, centre, 0.1))]
            }
        }
    }

    fn matrix(
        &mut self,
        path: &str,
        shape: [u64; 2],
        encoding: Encoding,
    ) -> Vec<(String, MappedTensor)> {
        let plain = Encoding::Float(FloatType::BF16);
        let encoding = if encoding.parts(shape).is_some() { encoding } else { plain };
        let spread = (3.0 / shape[1] as f32).sqrt(); // Rows are as long as they were.
        let (packed, codes) = match encoding {
            Encoding::Float(_) => (false, 1),
            Encoding::Affine(format) => (true, 1 << format.bits()),
            _ => panic!("no model is made in {encoding}"),
        };
        // Codes times these, less half of what that can be: as `spread` says.
        let scale = 2.0 * spread / codes as f32;
        let mut made = Vec::new();
        for spec in encoding.parts(shape).unwrap() {
            let tensor = match (spec.part, packed) {
                (Part::Weight, true) => self.codes(&spec.shape),
                (Part::Scales, _) => self.numbers(&spec.shape, scale, 0.1 * scale),
                (Part::Biases, _) => self.numbers(&spec.shape, -spread, 0.1 * spread),
                (Part::Weight, false) => self.numbers(&spec.shape, 0.0, spread),
                _ => panic!("no model is made in {encoding}"),
            };
            let tag = (spec.part == Part::Weight).then_some(encoding);
            made.push((format!("{path}{}", spec.part.ending()), tensor.with_encoding(tag)));
        }
        made
    }

    /// Random bits.
    fn codes(&mut self, shape: &[u64]) -> MappedTensor {
        let words = 0..shape.iter().product::<u64>();
        let bytes = words.flat_map(|_| (self.next() as u32).to_le_bytes()).collect();
        MappedTensor::from_vec(bytes, Dtype::U32, shape.to_vec())
    }

    /// Numbers in bf16 that are `spread` from `centre` at most.
    fn numbers(&mut self, shape: &[u64], centre: f32, spread: f32) -> MappedTensor {
        let numbers = 0..shape.iter().product::<u64>();
        let mut number = || ((centre + spread * self.signed()).to_bits() >> 16) as u16;
        let bytes = numbers.flat_map(|_| number().to_le_bytes()).collect();
        MappedTensor::from_vec(bytes, Dtype::BF16, shape.to_vec())
    }
}
