//! What a stage costs in memory: the numbers that the planner, the worker and the master share.

use cake_checkpoint::{Dtype, KvDtype, LayerSpec, ModelSpec, Op};

use crate::device::cpu::attention::attend_floats;
use crate::device::cpu::gemm::table;
use crate::options::BLOCK_POSITIONS;

/// Bytes of one f32.
const F32_BYTES: u64 = 4;
/// Room for the allocator's rounding and what it keeps between steps, as a divisor: a quarter more.
const ALLOCATOR_SLACK: u64 = 4;

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

/// An upper bound of the bytes that a stage allocates during a step of `rows` rows whose sequences
/// have up to `context` positions, on `threads` threads, the step's messages included.
///
/// Counted: hidden states as they arrive, as a tensor, beside their norm and the two sums, and twice
/// more on the way out; then what each kind of operation holds in its widest layer, all of them, since
/// [`Reuse`](crate::Reuse) keeps the blocks of the one while another runs; what kernels make of the
/// inputs of a product, of every width and in the largest of its forms; what every thread keeps for
/// attention and products; and a quarter more for the allocator, and for layers that mix packed and
/// other matrices, whose forms differ.
pub fn scratch_bytes(model: &ModelSpec, rows: usize, context: usize, threads: usize) -> u64 {
    let row = |width: usize| (width as u64).saturating_mul(rows as u64);
    let products = |inputs: usize, rows: usize| table::scratch(inputs as u64, rows as u64);
    let rounded = |inputs: usize| products(inputs, rows).activations.div_ceil(F32_BYTES);
    let hidden = row(model.hidden_size).saturating_mul(8);
    let rotations = model.rotations.iter().map(|rotation| row(rotation.dim));
    let panels = products(1, 1).thread.div_ceil(F32_BYTES).saturating_mul(threads.max(1) as u64);
    let (mut attention, mut kept, mut mlp) = (0, 0, 0);
    for op in model.layers.iter().flat_map(LayerSpec::ops) {
        match op {
            // q and k before and after norm and rotation, v, the weighted values, the output.
            Op::Attention(it) => {
                let (q, kv) = (row(it.q_dim()), row(it.kv_dim()));
                let held = q.saturating_mul(4).saturating_add(kv.saturating_mul(4));
                attention = attention.max(held.saturating_add(rounded(it.q_dim())));
                let group = it.heads.div_ceil(it.kv_heads.max(1));
                kept = kept.max(attend_floats(group, it.head_dim, context, threads));
            }
            // gate, up, their product.
            Op::Mlp(it) => {
                let held = row(it.inner_size).saturating_mul(3);
                mlp = mlp.max(held.saturating_add(rounded(it.inner_size)));
            }
            // The scores and the sum; then of each row that goes to an expert the row itself, what the expert makes of
            // it, and the result, since experts get different numbers of rows and blocks are kept by size.
            Op::Experts(it) => {
                let rows = rows.saturating_mul(it.chosen);
                let width = 2 * it.expert.hidden_size + 3 * it.expert.inner_size;
                let held = (width as u64).saturating_mul(rows as u64);
                let rounded = |inputs| products(inputs, rows).activations.div_ceil(F32_BYTES);
                let widths = [it.expert.hidden_size, it.expert.inner_size];
                let rounded = widths.map(rounded).into_iter().fold(held, u64::saturating_add);
                let ends = row(it.count).saturating_add(row(it.expert.hidden_size));
                mlp = mlp.max(rounded.saturating_add(ends));
            }
        }
    }
    let parts = [hidden, rounded(model.hidden_size), attention, kept, mlp, panels];
    let floats = parts.into_iter().chain(rotations).fold(0, u64::saturating_add);
    let bytes = floats.saturating_mul(F32_BYTES);
    bytes.saturating_add(bytes / ALLOCATOR_SLACK)
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
        let least = scratch_bytes(&config, 1, 16, 1);
        assert!(least >= 4 * (8 * 64 + 3 * 160 + 4 * (64 + 32)));
        // What kernels make of the inputs of each width: at least as much as there are.
        let rows = scratch_bytes(&config, 33, 16, 1) - scratch_bytes(&config, 32, 16, 1);
        assert!(rows >= 4 * (8 * 64 + 3 * 160 + 4 * (64 + 32)));
        for (rows, context, threads) in [(2, 16, 1), (1, 600, 1), (1, 16, 2)] {
            assert!(scratch_bytes(&config, rows, context, threads) > least);
        }
        assert_eq!(scratch_bytes(&config, usize::MAX, usize::MAX, usize::MAX), u64::MAX);
    }
}
