//! What a stage costs in memory: the numbers that the planner, the worker and the master share.

use cake_checkpoint::{
    ConvolutionSpec, DeltaSpec, Dtype, ExpertsSpec, KvDtype, LatentSpec, LayerSpec, MambaSpec,
    MlpSpec, ModelSpec, Op,
};

use crate::device::{DeviceScratch, scratch_of};
use crate::options::{BLOCK_POSITIONS, DeviceKind};

/// Bytes of one f32.
const F32_BYTES: u64 = 4;
/// Room for the allocator's rounding and what it keeps between steps, as a divisor: a quarter more.
const ALLOCATOR_SLACK: u64 = 4;
/// Bytes of what is noted of a row beside its numbers: where its past lies, its kind, its place in the tasks of a product.
const ROW_BYTES: u64 = 512;
/// The same of a row that goes to an expert: its number and its weight, three times while vectors grow.
const SHARE_BYTES: u64 = 3 * (size_of::<usize>() + size_of::<f32>()) as u64;
/// The same of one that is chosen before it has a score: its number, its product and its score, and both in a list.
const PICKED_BYTES: u64 = (2 * size_of::<(usize, f32)>() + size_of::<usize>()) as u64;
/// The same of an expert: who goes there, and its place in an order.
const EXPERT_BYTES: u64 = 256;
/// The same of a step, for all of its sections and tasks.
const STEP_BYTES: u64 = 64 << 10;

/// Bytes that `elements` weights of type `dtype` occupy on the processor: their own, since they stay as they are stored.
/// [`DeviceKind::resident_permille`](crate::DeviceKind::resident_permille) says what other devices add.
pub fn resident_bytes(dtype: Dtype, elements: u64) -> u64 {
    let bits = u128::from(elements) * u128::from(dtype.bits());
    u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
}

/// Blocks of [`BLOCK_POSITIONS`] positions that hold `tokens` tokens.
pub fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_POSITIONS)
}

/// Bytes of keys and values of these layers for `sequences` sequences of `context_tokens` tokens, each rounded up to
/// whole blocks.
pub fn kv_bytes(layers: &[LayerSpec], context_tokens: usize, sequences: usize, kv: KvDtype) -> u64 {
    let blocks = (blocks_for(context_tokens) as u64).saturating_mul(sequences as u64);
    block_bytes(layers, kv).saturating_mul(blocks)
}

/// Bytes of keys and values of one block of [`BLOCK_POSITIONS`] positions in these layers.
pub fn block_bytes(layers: &[LayerSpec], kv: KvDtype) -> u64 {
    let of_layers = layers.iter().map(|layer| layer.kept().bytes(kv));
    of_layers.fold(0, u64::saturating_add).saturating_mul(BLOCK_POSITIONS as u64)
}

/// Bytes of the state of recurrent layers among these, in so many slots.
pub fn state_bytes(layers: &[LayerSpec], slots: usize) -> u64 {
    let numbers = layers.iter().map(|layer| layer.kept().state as u64);
    let numbers = numbers.fold(0, u64::saturating_add);
    numbers.saturating_mul(F32_BYTES).saturating_mul(slots as u64)
}

/// Bytes that loading these layers takes beside their weights as they are stored: what is multiplied in another order than
/// it is stored in, in f32 where it is packed or met number by number; and sinks and experts' biases, in f32.
pub fn copied_bytes(layers: &[LayerSpec]) -> u64 {
    let of_op = |op: &Op| match op {
        // Files that have keys by themselves have them turned.
        Op::Latent(it) if it.keys.is_none() => {
            floats(it.heads, it.plain_dim).saturating_mul(it.rank as u64)
        }
        Op::Attention(it) => it.sinks.as_ref().map_or(0, |_| floats(1, it.heads)),
        Op::Experts(it) if it.expert.bias => {
            let outputs = it.expert.gate_up().into_iter().chain([it.expert.down()]);
            floats(it.count, outputs.map(|linear| linear.rows.len()).sum())
        }
        Op::ShortConvolution(_) | Op::Delta(_) | Op::Mamba(_) => {
            total(op.convolutions().into_iter().map(taps))
        }
        Op::Latent(_) | Op::Experts(_) | Op::Mlp(_) | Op::WithGiven(_) | Op::LowRank(_) => 0,
        Op::Sum(_) | Op::Normed(_) => 0, // Their parts are counted.
    };
    layers.iter().flat_map(LayerSpec::ops).map(of_op).fold(0, u64::saturating_add)
}

/// An upper bound of the bytes that a stage allocates during a step of `rows` rows whose sequences have up to `context`
/// positions, on this device with `threads` threads, the step's messages included.
pub fn scratch_bytes(
    device: DeviceKind,
    model: &ModelSpec,
    rows: usize,
    context: usize,
    threads: usize,
) -> u64 {
    StepMemory::new(scratch_of(device), model, &model.layers).all(rows, context, threads)
}

/// What the steps of some layers take of memory.
pub(crate) struct StepMemory {
    device: DeviceScratch,
    hidden_size: usize,
    /// Streams of hidden states,
    streams: usize,
    /// Numbers of the widest row that comes or leaves.
    row_width: usize,
    /// Numbers that all rotations have for a row.
    rotations: usize,
    /// The operations of the layers, each kind once,
    ops: Vec<Op>,
    /// and whether results are added up before they are added to the hidden states.
    has_sums: bool,
    /// and whether parts of these have norms of their own.
    has_norms: bool,
}

impl StepMemory {
    /// That of these layers of `model` on a device that takes so much for its part.
    pub(crate) fn new(device: DeviceScratch, model: &ModelSpec, layers: &[LayerSpec]) -> Self {
        let mut ops: Vec<Op> = Vec::new();
        for op in layers.iter().flat_map(LayerSpec::ops) {
            if !ops.contains(op) {
                ops.push(op.clone());
            }
        }
        let rotations = model.rotations.iter().map(|rotation| rotation.dim).sum();
        let mut branches = layers.iter().flat_map(|layer| &layer.branches);
        let has_sums = branches.any(|branch| matches!(branch.op, Op::Sum(_)));
        let in_sum = |op: &Op| matches!(op, Op::Normed(_));
        let has_norms = layers
            .iter()
            .flat_map(|layer| &layer.branches)
            .any(|branch| matches!(&branch.op, Op::Sum(parts) if parts.iter().any(in_sum)));
        let hidden_size = model.hidden_size;
        let row_width = model.widest_row();
        let streams = model.stream_count();
        StepMemory { device, hidden_size, streams, row_width, rotations, ops, has_sums, has_norms }
    }

    /// Bytes of large blocks that the thread of a step of `rows` rows may have: its blocks, and its own part of what threads
    /// take. [`StepMemory::all`] has both in it.
    pub(crate) fn limit(&self, rows: usize, context: usize) -> u64 {
        total([self.blocks(rows), self.attention(rows, context, 1), self.thread()])
    }

    /// An upper bound of the bytes that a step of `rows` rows takes: its blocks, the rows that come and, twice,
    /// those that leave, what threads take, and a quarter more for the allocator's rounding.
    pub(crate) fn all(&self, rows: usize, context: usize, threads: usize) -> u64 {
        let bytes = total([
            self.blocks(rows),
            floats(rows, self.row_width).saturating_mul(3),
            self.attention(rows, context, threads),
            self.thread().saturating_mul(threads.max(1) as u64),
        ]);
        bytes.saturating_add(bytes / ALLOCATOR_SLACK)
    }

    /// What the widest attention takes beside operands and results.
    fn attention(&self, rows: usize, context: usize, threads: usize) -> u64 {
        let attention = self.ops.iter().map(|op| match op {
            Op::Attention(it) => (self.device.attention)(&it.into(), rows, context, threads),
            Op::Latent(it) => (self.device.attention)(&it.into(), rows, context, threads),
            // What goes by a state or by rows alone has no scores of past positions.
            Op::ShortConvolution(_) | Op::Delta(_) | Op::Mamba(_) => 0,
            Op::Mlp(_) | Op::Experts(_) | Op::WithGiven(_) | Op::LowRank(_) => 0,
            Op::Sum(_) | Op::Normed(_) => 0, // Their parts are counted.
        });
        attention.max().unwrap_or(0)
    }

    /// What a thread takes for the widest product.
    fn thread(&self) -> u64 {
        let inputs = self.ops.iter().flat_map(|op| match op {
            Op::Attention(it) => vec![it.hidden_size, it.q_dim()],
            Op::Latent(it) => latent_inputs(it),
            Op::ShortConvolution(it) => vec![it.hidden_size],
            Op::Delta(it) => delta_inputs(it),
            Op::Mamba(it) => vec![it.hidden_size, it.inner_dim()],
            Op::Mlp(it) => vec![it.hidden_size, it.inner_size],
            Op::Experts(it) => vec![it.hidden_size(), it.expert.hidden_size, it.expert.inner_size],
            Op::WithGiven(it) => vec![it.hidden_size, it.width],
            Op::LowRank(it) => vec![it.hidden_size, it.rank],
            Op::Sum(_) | Op::Normed(_) => Vec::new(),
        });
        (self.device.thread)(inputs.max().unwrap_or(0) as u64)
    }

    /// Bytes of the blocks that a step of `rows` rows has at any time, where it takes none twice: as much as layers without
    /// experts ever free may be kept for the next layer. Of a mixture, in which every expert has other rows and so other
    /// blocks, it is what the one with most of them takes: a row goes to an expert once at most.
    ///
    /// Counted: the sums and norms of hidden states; what each kind of operation holds in its widest layer, all of them;
    /// what products make of their inputs; and what is noted of rows.
    pub(crate) fn blocks(&self, rows: usize) -> u64 {
        let product = |inputs: usize| (self.device.product)(inputs as u64, rows as u64);
        let (mut attention, mut network) = (0, 0);
        for op in &self.ops {
            match op {
                // Queries and keys, both before and after norm or rotation, and values.
                Op::Attention(it) => {
                    let gates = if it.output_gate.is_some() { 4 } else { 0 }; // With queries and apart, and what they multiply.
                    let queries = floats(rows, it.q_dim()).saturating_mul(2 + gates);
                    let kept = 3 + u64::from(it.value_norm.is_some());
                    let keys_and_values = floats(rows, it.kv_dim()).saturating_mul(kept);
                    let products = total([product(it.hidden_size), product(it.q_dim())]);
                    attention = attention.max(total([queries, keys_and_values, products]));
                }
                Op::Latent(it) => {
                    let floats = floats(rows, latent_floats(it));
                    let products = latent_inputs(it).into_iter().map(product);
                    attention = attention.max(total(products.chain([floats])));
                }
                // Thirds of the input, two of them multiplied, what the convolution makes of that, and with the last one.
                Op::ShortConvolution(it) => {
                    let products = product(it.hidden_size).saturating_mul(2);
                    let floats = floats(rows, it.hidden_size).saturating_mul(6);
                    attention = attention.max(floats.saturating_add(products));
                }
                Op::Delta(it) => {
                    let floats = floats(rows, delta_floats(it));
                    let products = delta_inputs(it).into_iter().map(product);
                    attention = attention.max(total(products.chain([floats])));
                }
                Op::Mamba(it) => {
                    let floats = floats(rows, mamba_floats(it));
                    let products = [it.hidden_size, it.hidden_size, it.inner_dim()].map(product);
                    attention = attention.max(total(products.into_iter().chain([floats])));
                }
                Op::Mlp(it) => network = network.max(mlp(it, rows, product)),
                // Few numbers, their product, and its norm.
                Op::LowRank(it) => {
                    let floats = floats(rows, it.rank + 2 * it.hidden_size);
                    let products = [it.hidden_size, it.rank].map(product);
                    network = network.max(total(products.into_iter().chain([floats])));
                }
                // The gate, what is given, and their product.
                Op::WithGiven(it) => {
                    let floats = floats(rows, it.width).saturating_mul(3);
                    let products = [it.hidden_size, it.width].map(product);
                    network = network.max(total(products.into_iter().chain([floats])));
                }
                // The scores as products and as probabilities, who goes where, and an expert's rows and results.
                Op::Experts(it) => {
                    let scores = floats(rows, it.count).saturating_mul(2);
                    let shares =
                        (rows.saturating_mul(it.chosen) as u64).saturating_mul(SHARE_BYTES);
                    let experts = (it.count as u64).saturating_mul(EXPERT_BYTES);
                    let norms = [it.norm.is_some(), it.router.norm.is_some()].map(u64::from);
                    let ends = 2 + norms.iter().sum::<u64>();
                    let ends = floats(rows, self.hidden_size).saturating_mul(ends);
                    let expert = mlp(&it.expert, rows, product);
                    // Who is chosen by products, these, and what they become.
                    let picked = (rows.saturating_mul(it.chosen) as u64).saturating_mul(
                        if it.router.scores.are_of_chosen() { PICKED_BYTES } else { 0 },
                    );
                    let parts = [
                        scores,
                        shares,
                        experts,
                        ends,
                        expert,
                        picked,
                        projections(it, rows, product),
                    ];
                    network = network.max(total(parts));
                }
                Op::Sum(_) | Op::Normed(_) => {} // Their parts are counted.
            }
        }
        // With sums another one, and with norms in these what is before and after both.
        // Within a layer that is parted, sums of experts go with hidden states.
        let is_slice = |op: &Op| matches!(op, Op::Experts(it) if it.slice.is_some());
        let sums = u64::from(self.ops.iter().any(is_slice));
        let hidden = 2 + sums + u64::from(self.has_sums) + 2 * u64::from(self.has_norms);
        let hidden = floats(rows, self.hidden_size).saturating_mul(hidden);
        let streams = match self.streams {
            1 => 0,
            // All of them before and after they are parted, and as predicted; the active one as it is taken, what came of it,
            // and norms of these; and what weighs them, with the numbers of rows.
            count => {
                let hidden = floats(rows, self.hidden_size).saturating_mul(3 * count as u64 + 4);
                let weights = floats(rows, 2 * count * count + 8 * count + 16);
                total([hidden, weights])
            }
        };
        let noted = (rows as u64).saturating_mul(ROW_BYTES).saturating_add(STEP_BYTES);
        total([hidden, streams, attention, network, floats(rows, self.rotations), noted])
    }
}

/// Inputs of the products of latent attention: of its queries, of what it keeps, of each head and of the output.
fn latent_inputs(it: &LatentSpec) -> Vec<usize> {
    let queries = it.queries().into_iter().map(|linear| linear.inputs);
    queries.chain([it.plain_dim, it.rank, it.values_dim()]).collect()
}

/// Numbers that latent attention makes of a row: short queries before and after their norm, queries and both parts of them,
/// these rotated, what is kept and both parts of it; of all heads, one by one and together, what meets latents, the
/// queries with it, what attention makes of them, the latents of that, and values.
fn latent_floats(it: &LatentSpec) -> usize {
    let short = it.queries().iter().map(|linear| linear.inputs).max().unwrap_or(0);
    let (kept, rank) = (it.kept_dim(), it.rank);
    let of_head = 4 * rank + 2 * kept + 2 * it.value_dim + it.plain_dim + 2 * it.rotary_dim;
    2 * short + 2 * it.q_dim() + 4 * kept + it.heads * of_head
}

/// Inputs of the products of a delta rule: of each of its projections, those of the same input included.
fn delta_inputs(it: &DeltaSpec) -> Vec<usize> {
    let inputs = it.inputs().into_iter().map(|linear| linear.inputs);
    inputs.chain([it.values_dim()]).collect()
}

/// Numbers that a delta rule makes of a row: queries, keys, values and gates, as they come and apart; the first three before
/// and after the convolution, after its activation and apart; queries and keys of their lengths; what comes out by heads,
/// by rows, normalised and gated; and what is forgotten and corrected, before and after their functions.
fn delta_floats(it: &DeltaSpec) -> usize {
    let (keys, values, heads) = (it.keys_dim(), it.values_dim(), it.value_heads);
    let qkv = 2 * keys + values;
    2 * (qkv + values)
        + 4 * qkv
        + 2 * keys
        + 4 * values
        + 2 * it.decays()
        + 3 * heads
        + 2 * it.key_dim
}

/// Numbers that a state space makes of a row: gates; what the convolution takes, perhaps multiplied in parts, before and
/// after it, after its activation and in parts; steps; and what comes out by heads, by rows, gated and normalised in parts.
fn mamba_floats(it: &MambaSpec) -> usize {
    let inner = it.inner_dim();
    let convolved = inner + 2 * it.groups_dim();
    2 * inner + 6 * convolved + 3 * it.heads + 6 * inner
}

/// Experts' rows before and after them, what becomes of their sums, and what is made of the inputs of both projections, where
/// there are such.
fn projections(it: &ExpertsSpec, rows: usize, product: impl Fn(usize) -> u64) -> u64 {
    let (inside, outside) = (it.expert.hidden_size, it.hidden_size());
    match it.projections {
        None => 0,
        Some(_) => {
            total([floats(rows, 2 * inside + 2 * outside), product(inside), product(outside)])
        }
    }
}

/// Bytes of the weights of a convolution, tap by tap.
fn taps(it: &ConvolutionSpec) -> u64 {
    floats(it.taps + 1, it.channels)
}

/// Gate, up and their product, and what is made of the inputs of both products.
fn mlp(mlp: &MlpSpec, rows: usize, product: impl Fn(usize) -> u64) -> u64 {
    let bounded = u64::from(mlp.gate_cutoff.is_some());
    let inner = floats(rows, mlp.inner_size).saturating_mul(3 + bounded);
    // What is multiplied, and by what; both products and both lists of that.
    let gate = mlp.output_gate.as_ref().map_or(0, |_| {
        let noted = (rows as u64).saturating_mul(SHARE_BYTES);
        total([floats(rows, mlp.hidden_size), floats(rows, 2), noted])
    });
    total([inner, product(mlp.hidden_size), product(mlp.inner_size), gate])
}

/// Bytes of `[rows, width]` in f32.
fn floats(rows: usize, width: usize) -> u64 {
    (rows as u64).saturating_mul(width as u64).saturating_mul(F32_BYTES)
}

fn total(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelSpec {
        let json = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,
            "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
            "intermediate_size":160,"vocab_size":384,"rms_norm_eps":1e-5,
            "max_position_embeddings":256}"#;
        ModelSpec::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn weights_cost_what_they_are_stored_in() {
        assert_eq!(resident_bytes(Dtype::BF16, 10), 20);
        assert_eq!(resident_bytes(Dtype::F32, 10), 40);
        assert_eq!(resident_bytes(Dtype::F4, 3), 2);
        assert_eq!(resident_bytes(Dtype::F64, u64::MAX), u64::MAX);
    }

    #[test]
    fn keys_and_values_come_in_whole_blocks_per_sequence() {
        assert_eq!((blocks_for(0), blocks_for(16), blocks_for(17)), (0, 1, 2));
        // Two of 2 heads × 16 per token and layer; 17 tokens take 32 positions.
        let layers = config().layers;
        assert_eq!(kv_bytes(&layers, 17, 2, KvDtype::F32), 2 * 32 * 4 * 32 * 2 * 3);
        assert_eq!(kv_bytes(&layers, 17, 2, KvDtype::F16), 2 * 32 * 2 * 32 * 2 * 3);
        assert_eq!(kv_bytes(&layers[..1], usize::MAX, usize::MAX, KvDtype::F32), u64::MAX);
    }

    #[test]
    fn scratch_grows_with_rows_context_and_threads_and_never_overflows() {
        let config = config();
        let least = scratch_bytes(DeviceKind::Cpu, &config, 1, 16, 1);
        assert!(least >= 4 * (5 * 64 + 3 * 160 + 2 * 64 + 3 * 32));
        // What kernels make of the inputs of each width: at least as much as there are.
        let rows = scratch_bytes(DeviceKind::Cpu, &config, 33, 16, 1)
            - scratch_bytes(DeviceKind::Cpu, &config, 32, 16, 1);
        assert!(rows >= 4 * (5 * 64 + 3 * 160 + 2 * 64 + 3 * 32));
        for (rows, context, threads) in [(2, 16, 1), (1, 600, 1), (1, 16, 2)] {
            assert!(scratch_bytes(DeviceKind::Cpu, &config, rows, context, threads) > least);
        }
        assert_eq!(
            scratch_bytes(DeviceKind::Cpu, &config, usize::MAX, usize::MAX, usize::MAX),
            u64::MAX
        );
    }
}
