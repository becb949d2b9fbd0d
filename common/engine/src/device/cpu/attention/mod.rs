//! Attention over a KV cache in blocks, without gathering keys and values or repeating them for GQA: in tiles with an
//! online softmax, as FlashAttention has it (arXiv:2205.14135).
//!
//! Consecutive rows of a sequence form a tile, so that each key and value is widened or dequantized once for all
//! of them and for all query heads that share it. What a row computes depends on its position
//! alone:
//! - A score is one chain (the additions to one accumulator in order) over the elements of a head.
//! - Positions are taken in spans of [`SPAN`], aligned to position 0. In each span the softmax is taken by itself: lane
//!   `position % 16` of maximum and sum, values in order of position.
//! - Spans are then merged in order, and after them a sink, which takes its part of the sum alone. Any thread may
//!   compute a span, so that several can share the past of a single row.

mod call;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod walk;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

use self::call::{SPAN, TILE_QUERIES};
use self::state::{Finish, State};
use self::walk::{Scratch, Walk};
use crate::device::Attending;
use crate::device::cpu::buffer::{Uninit, UninitVec};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{PARALLEL_WORK, current_threads, for_each_mut};

pub(crate) use self::call::{Attend, KvView};
pub(crate) use self::stored::store;

/// Tasks per thread below which the past of each row is shared out too.
const TASKS_PER_THREAD: usize = 2;

/// Bytes of what is noted of a task, and of what is noted of it in vectors that grow: three times as much while they
/// do.
const TASK_BYTES: u64 = (size_of::<Task<'_>>() + size_of::<Mutex<&Task<'_>>>()) as u64;
const PIECE_BYTES: u64 = 3 * size_of::<(&Task<'_>, usize, State)>() as u64;
const TILE_BYTES: u64 = 3 * size_of::<Range<usize>>() as u64;

/// An upper bound of the bytes that [`attend`] holds beside its arguments and its result, on all threads, for so many
/// rows that see up to `context` positions.
pub(crate) fn attend_bytes(spec: &Attending, rows: usize, context: usize, threads: usize) -> u64 {
    let (kv_heads, head_dim) = (spec.kv_heads.max(1), spec.head_dim as u64);
    let group = spec.heads.div_ceil(kv_heads);
    let queries = group.saturating_mul(rows).min(group.max(TILE_QUERIES)) as u64;
    let floats = size_of::<f32>() as u64;
    let state = queries.saturating_mul(head_dim + LANES as u64 + 2).saturating_mul(floats);
    let scratch = walk::scratch_floats(queries, head_dim).saturating_mul(floats);
    // A state for each span of each task where the past is shared out, and one per thread otherwise; and one that spans
    // or states are merged in.
    let spans = context.div_ceil(SPAN).max(1) as u64;
    let shared_out = spans.saturating_mul(TASKS_PER_THREAD as u64);
    let states = state.saturating_add(PIECE_BYTES).saturating_mul(shared_out);
    let of_thread = scratch.saturating_add(state).saturating_add(states);
    let of_threads = of_thread.saturating_mul(threads.max(1) as u64).saturating_add(state);
    let of_task = TASK_BYTES + size_of::<&mut Uninit>() as u64;
    let of_row = of_task.saturating_mul(kv_heads as u64).saturating_add(TILE_BYTES);
    of_row.saturating_mul(rows as u64).saturating_add(of_threads)
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `softmax(scale · q · keysᵀ) · values` for each row and head over the positions it sees.
///
/// `q` and the result are `[rows, heads, head_dim]`. Runs on the current pool.
pub(crate) fn attend(tier: Tier, attend: &Attend<'_>, q: &[f32]) -> Vec<f32> {
    let kv_heads = attend.kv.kv_heads;
    let tiles = attend.tiles();
    let heads = attend.spec.heads;
    let width = heads * attend.kv.head_dim;
    assert_eq!(q.len(), attend.rows.len() * width, "a query for each head of each row");
    assert_eq!(heads % kv_heads, 0, "the heads of a row are all in some group");
    assert!(attend.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each head");
    let mut out = UninitVec::new(q.len());
    let mut tasks = tasks(attend, &tiles, out.uninit());
    let walk = |task: &Task<'_>, spans: Range<usize>, state: &mut State| {
        SCRATCH.with_borrow_mut(|scratch| {
            let (rows, kv_head) = (task.rows.clone(), task.kv_head);
            tier.run(Walk { attend, rows, kv_head, q, spans, state, scratch });
        });
    };
    let finish = |task: &mut Task<'_>, states: &[State]| {
        let (head_dim, sinks) = (attend.kv.head_dim, attend.sinks(task.kv_head));
        tier.run(Finish { states, head_dim, sinks, out: &mut task.out });
    };
    let whole = |task: &mut Task<'_>| {
        let mut state = State::default();
        walk(task, attend.spans(&task.rows), &mut state);
        finish(task, &[state]);
    };
    let seen: usize = attend.rows.iter().map(|row| attend.seen(row.position).len()).sum();
    if seen * heads * attend.kv.head_dim < PARALLEL_WORK {
        tasks.iter_mut().for_each(whole);
    } else if tiles.len() * kv_heads >= TASKS_PER_THREAD * current_threads() {
        for_each_mut(&mut tasks, |_, task| whole(task));
    } else {
        let spans = |task: &Task<'_>| attend.spans(&task.rows);
        let pieces = tasks.iter().flat_map(|task| spans(task).map(move |span| (task, span)));
        let mut pieces: Vec<_> =
            pieces.map(|(task, span)| (task, span, State::default())).collect();
        for_each_mut(&mut pieces, |_, (task, span, state)| walk(task, *span..*span + 1, state));
        let states: Vec<_> = pieces.into_iter().map(|(_, _, state)| state).collect();
        let mut left = &states[..];
        for task in &mut tasks {
            let (states, others) = left.split_at(spans(task).len());
            finish(task, states);
            left = others;
        }
    }
    // SAFETY: the tasks have the heads of all rows among them, and each is finished, which writes its heads.
    unsafe { out.assume_init() }
}

/// One tile with one head of the cache.
struct Task<'a> {
    rows: Range<usize>,
    kv_head: usize,
    /// One per row, `[group, head_dim]`.
    out: Vec<&'a mut Uninit>,
}

/// All tasks, tile after tile with one head of the cache, whose keys and values then stay near.
fn tasks<'a>(attend: &Attend<'_>, tiles: &[Range<usize>], out: &'a mut Uninit) -> Vec<Task<'a>> {
    let kv_heads = attend.kv.kv_heads;
    let width = attend.group() * attend.kv.head_dim;
    let mut tasks = Vec::with_capacity(kv_heads * tiles.len());
    for kv_head in 0..kv_heads {
        let task = |rows: &Range<usize>| {
            let (rows, out) = (rows.clone(), Vec::with_capacity(rows.len()));
            Task { rows, kv_head, out }
        };
        tasks.extend(tiles.iter().map(task));
    }
    let mut parts = out.chunks_exact_mut(width);
    for (tile, rows) in tiles.iter().enumerate() {
        for (kv_head, part) in rows.clone().flat_map(|_| 0..kv_heads).zip(&mut parts) {
            tasks[kv_head * tiles.len() + tile].out.push(part);
        }
    }
    tasks
}
