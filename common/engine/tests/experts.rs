//! Mixtures of experts against their definition in f64, by stages of nothing but norms, experts and MLPs.

mod made;

use cake_checkpoint::{
    Affine, Branch, Encoding, ExpertsSpec, FloatType, LinearSpec, MlpSpec, ModelSpec, NormSpec, Op,
    Part, RowsAt,
};
use cake_engine::{Batch, BatchItem, DeviceKind, EngineOptions, Numerics};

use made::{Made, hidden};

const ROWS: usize = 40;
const BF16: Encoding = Encoding::Float(FloatType::BF16);
/// Largest difference of a number, all of which are a few units large: sums of some hundred products in f32.
const TOLERANCE: f64 = 2e-5;
/// The same of generated rows beside packed weights: each group of activations in codes of 16 bits.
const TOLERANCE_CODES: f64 = 1e-3;
/// What the router has to tell the last expert that is chosen from the first that is not by, so that no rounding chooses
/// another one.
const CLEAR: f64 = 1e-5;

/// Two layers, every `sparse_step`th with experts: how many there are, how many a row goes to, and whether the weights
/// of these are divided by their sum.
fn model(sparse_step: usize, (count, chosen, renormalise): (usize, usize, bool)) -> ModelSpec {
    let config = format!(
        r#"{{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":128,"num_hidden_layers":2,
        "num_attention_heads":2,"num_key_value_heads":1,"head_dim":64,"intermediate_size":192,
        "vocab_size":64,"rms_norm_eps":1e-6,"max_position_embeddings":4096,"num_experts":{count},
        "num_experts_per_tok":{chosen},"moe_intermediate_size":64,"norm_topk_prob":{renormalise},
        "decoder_sparse_step":{sparse_step}}}"#
    );
    let mut model = ModelSpec::parse(config.as_bytes()).unwrap();
    for layer in &mut model.layers {
        layer.branches.retain(|branch| !matches!(branch.op, Op::Attention(_)));
    }
    model
}

/// What the stage makes of all rows, each a generated one of a sequence of its own.
fn computed(made: &Made, options: &EngineOptions) -> Vec<f32> {
    let item = |sequence| BatchItem {
        sequence,
        position: 0,
        rows: 1,
        prompt: false,
        blocks: vec![0],
        known: 0,
        state: None,
    };
    let batch = Batch { items: (0..ROWS as u64).map(item).collect() };
    made.stage(options).forward(&batch, hidden(ROWS, made.model.hidden_size)).unwrap()
}

/// A layer's numbers in f64, and the definition of what is made of them, row by row.
struct Layer<'a> {
    made: &'a Made,
    index: usize,
}

impl Layer<'_> {
    fn row(&self, x: &mut [f64]) {
        for Branch { pre, op, .. } in &self.made.model.layers[self.index].branches {
            let normed = self.norm(pre.as_ref().unwrap(), x);
            let result = match op {
                Op::Mlp(it) => self.mlp(it, &normed),
                Op::Experts(it) => self.experts(it, &normed),
                _ => unreachable!("there is none"),
            };
            x.iter_mut().zip(result).for_each(|(x, result)| *x += result);
        }
    }

    fn experts(&self, spec: &ExpertsSpec, x: &[f64]) -> Vec<f64> {
        let scores = self.linear(&spec.router(), x);
        let all: f64 = scores.iter().map(|score| score.exp()).sum();
        let mut likely: Vec<(usize, f64)> =
            scores.iter().map(|score| score.exp() / all).enumerate().collect();
        likely.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        if let Some((_, next)) = likely.get(spec.chosen) {
            let last = likely[spec.chosen - 1].1;
            assert!(last - next > CLEAR, "a choice between {last} and {next}");
        }
        likely.truncate(spec.chosen);
        let renormalise = spec.router.renormalise.is_some();
        let sum = if renormalise { likely.iter().map(|(_, weight)| weight).sum() } else { 1.0 };
        let mut sums = vec![0.0; x.len()];
        for (expert, weight) in likely {
            let result = self.mlp(&spec.expert(expert), x);
            sums.iter_mut().zip(result).for_each(|(to, result)| *to += weight / sum * result);
        }
        sums
    }

    fn mlp(&self, spec: &MlpSpec, x: &[f64]) -> Vec<f64> {
        let [gate, up] = [0, 1].map(|index| self.linear(&spec.gate_up()[index], x));
        let product = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up);
        self.linear(&spec.down(), &product.collect::<Vec<f64>>())
    }

    fn norm(&self, spec: &NormSpec, x: &[f64]) -> Vec<f64> {
        let weight = self.numbers(&spec.path, [1, spec.width as u64], BF16);
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + spec.eps).sqrt();
        x.iter().zip(weight).map(|(x, weight)| x * scale * f64::from(weight)).collect()
    }

    fn linear(&self, spec: &LinearSpec, x: &[f64]) -> Vec<f64> {
        let name = format!("{}{}", spec.path, Part::Weight.ending());
        let name = self.made.model.layer_tensor_name(self.index, &name);
        let encoding = self.made.tensors[&name].encoding().unwrap();
        let weight =
            self.numbers(&spec.path, [spec.stored_rows as u64, spec.inputs as u64], encoding);
        let outputs = weight.chunks_exact(spec.inputs);
        outputs
            .map(|row| row.iter().zip(x).map(|(weight, x)| f64::from(*weight) * x).sum())
            .collect()
    }

    /// The numbers of a module, as its encoding defines them.
    fn numbers(&self, path: &str, shape: [u64; 2], encoding: Encoding) -> Vec<f32> {
        let parts = encoding.parts(shape).unwrap();
        let parts = parts.iter().map(|spec| {
            let leaf = format!("{path}{}", spec.part.ending());
            let tensor = &self.made.tensors[&self.made.model.layer_tensor_name(self.index, &leaf)];
            (tensor.dtype(), tensor.bytes())
        });
        let mut numbers = vec![0.0; (shape[0] * shape[1]) as usize];
        let at = RowsAt::start(shape[1] as usize);
        encoding.decode_rows(at, &parts.collect::<Vec<_>>(), &mut numbers);
        numbers
    }
}

/// The same as [`computed`], from the definition.
fn defined(made: &Made) -> Vec<f64> {
    let mut hidden: Vec<f64> =
        hidden(ROWS, made.model.hidden_size).into_iter().map(f64::from).collect();
    for index in 0..made.model.layers.len() {
        let rows = hidden.chunks_exact_mut(made.model.hidden_size);
        rows.for_each(|row| Layer { made, index }.row(row));
    }
    hidden
}

/// Compares what every device and numerics make of a model with its definition, which it returns.
fn check(model: ModelSpec, encoding: Encoding) -> Vec<f64> {
    let made = Made::new(model, encoding);
    let exact = defined(&made);
    for (device, numerics, tolerance) in [
        (DeviceKind::Cpu, Numerics::Exact, TOLERANCE),
        (DeviceKind::Candle, Numerics::Exact, TOLERANCE),
        (DeviceKind::Cpu, Numerics::Fast, TOLERANCE_CODES),
    ] {
        let options = EngineOptions { threads: 2, device, numerics, ..EngineOptions::new(1) };
        let found = computed(&made, &options);
        let differences = found.iter().zip(&exact).map(|(a, b)| (f64::from(*a) - b).abs());
        let difference = differences.fold(0.0, f64::max);
        println!("{encoding} {} {numerics}: {difference:e}", device.name());
        assert!(difference <= tolerance, "{encoding} {} {numerics}: {difference:e}", device.name());
    }
    exact
}

/// Whether these differ by more than any rounding makes of them.
fn differ(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).any(|(a, b)| (a - b).abs() > 0.1)
}

#[test]
fn weights_are_divided_by_their_sum_where_the_model_says_so_and_only_there() {
    let [as_they_are, renormalised] =
        [false, true].map(|renormalise| check(model(1, (8, 2, renormalise)), BF16));
    assert!(differ(&as_they_are, &renormalised));
    // Where a row goes to all of them there is nothing to divide by.
    let [as_they_are, renormalised] =
        [false, true].map(|renormalise| check(model(1, (3, 3, renormalise)), BF16));
    assert!(!differ(&as_they_are, &renormalised));
}

#[test]
fn dense_and_sparse_layers_stand_beside_each_other() {
    let made = model(2, (8, 2, false));
    let sparse = |layer: usize| made.layers[layer].ops().any(|op| matches!(op, Op::Experts(_)));
    assert_eq!([sparse(0), sparse(1)], [false, true]);
    for encoding in [BF16, Encoding::Affine(Affine::Q4)] {
        check(made.clone(), encoding);
    }
}

#[test]
fn experts_are_packed_like_any_matrix() {
    for format in [Affine::Q4, Affine::Q8, Affine::new(8, 32).unwrap()] {
        for renormalise in [false, true] {
            check(model(1, (8, 2, renormalise)), Encoding::Affine(format));
        }
    }
}
