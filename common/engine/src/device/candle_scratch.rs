//! What candle's operations take of memory. It is kept apart from them because a program that was built without candle
//! still plans for workers that have it.

use super::{Attending, DeviceScratch};

/// Bytes of one f32.
const F32_BYTES: u64 = 4;

/// Numbers of weights that are decoded at once, unless a single row has more: the products with them are large, and both
/// stay in a cache.
const STRIP_NUMBERS: usize = 1 << 20;
/// The most rows of weights that are, which bounds what comes out of them.
const STRIP_ROWS: usize = 1024;

/// How many rows of so many weights are decoded and multiplied at once.
pub(super) fn strip_rows(inputs: usize) -> usize {
    (STRIP_NUMBERS / inputs.max(1)).clamp(1, STRIP_ROWS)
}

/// What each thread of candle's products keeps on the processor: as much as its second-level cache has, of which none has
/// more than this. Candle computes on as many threads as the processor has, whatever is asked.
const THREAD_BYTES: u64 = 4 << 20;

/// What candle takes of memory for parts of a step.
pub(super) const SCRATCH: DeviceScratch =
    DeviceScratch { product: product_bytes, attention: attention_bytes, thread: |_| THREAD_BYTES };

/// What a product takes at most: its activations twice, for each strip the weights, and what comes out of them before it is
/// in its place.
fn product_bytes(inputs: u64, rows: u64) -> u64 {
    let width = usize::try_from(inputs).unwrap_or(usize::MAX);
    let strip = strip_rows(width) as u64;
    let activations = inputs.saturating_mul(rows).saturating_mul(2);
    let strip = inputs.saturating_add(rows).saturating_mul(strip);
    activations.saturating_add(strip).saturating_mul(F32_BYTES)
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
