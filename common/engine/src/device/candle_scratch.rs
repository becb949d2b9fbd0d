//! What candle's operations take of memory. It is kept apart from them because a program that was built without candle
//! still plans for workers that have it.

use super::{Attending, DeviceScratch};

/// Bytes of one f32.
const F32_BYTES: u64 = 4;

/// What each thread of candle's products keeps on the processor: as much as its second-level cache has, of which none has
/// more than this. Candle computes on as many threads as the processor has, whatever is asked.
const THREAD_BYTES: u64 = 4 << 20;

/// What candle takes of memory for parts of a step.
pub(super) const SCRATCH: DeviceScratch =
    DeviceScratch { product: product_bytes, attention: attention_bytes, thread: |_| THREAD_BYTES };

/// What a product copies of its activations, at most.
fn product_bytes(inputs: u64, rows: u64) -> u64 {
    inputs.saturating_mul(rows).saturating_mul(F32_BYTES)
}

/// Of rotations and of attention (`attended` in `candle.rs`): keys and values by head, each gathered, widened, repeated and
/// turned; scores, scaled, masked, and what the softmax makes of them on its way; and the copies that turn queries.
fn attention_bytes(spec: &Attending, rows: usize, context: usize, _: usize) -> u64 {
    let (rows, context, width) = (rows as u64, context as u64, spec.q_dim() as u64);
    let past = context.saturating_mul(width).saturating_mul(6);
    // With sinks, what is one wider than the context, and what is left of it.
    let (sinks, times) = if spec.has_sinks { (1, 8) } else { (0, 6) };
    let seen = context.saturating_add(sinks);
    let scores = rows.saturating_mul(seen).saturating_mul(times * spec.heads as u64 + 3);
    let queries = rows.saturating_mul(width).saturating_mul(6);
    let floats = [past, scores, queries].into_iter().fold(0, u64::saturating_add);
    floats.saturating_mul(F32_BYTES)
}
