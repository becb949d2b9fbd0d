//! One integer GEMM or GEMV, cut into tasks.

use super::super::activations::{Activations, tile_rows};
use super::super::call::share;
use super::direct::direct;
use super::panel::{OUTPUTS, ROWS, panels};
use super::stored::{BYTES, LANES, Stored, WORDS};
use super::task::Task;
use super::{wide, wide_direct};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::Acts;
use crate::device::cpu::isa::x86::{Avx2, Avx512Vnni};
use crate::device::cpu::pool::{Tasks, current_threads};

/// Outputs of a task beside many rows at most, so that a thread that is held up leaves its share to others.
const TASK_OUTPUTS: usize = 4 * OUTPUTS;
/// Least rows that are worth transposing a panel once more for, so that another thread has work.
const PART_ROWS: usize = 48;

/// A GEMM or GEMV with some matrix.
pub(super) struct Product<'a> {
    pub(super) proof: Avx2,
    /// Proof that the processor multiplies and accumulates at once, in vectors of 64 bytes, if it does.
    pub(super) vnni: Option<Avx512Vnni>,
    pub(super) rows: usize,
    pub(super) parallel: bool,
    /// The width of the activations' codes.
    pub(super) acts: Acts,
    pub(super) bias: Option<&'a [f32]>,
    /// In lanes or tiles, or as planes, as `prepare` says.
    pub(super) x: &'a Activations,
    pub(super) y: Target<'a>,
}

impl<'a> Product<'a> {
    /// The tasks of the product with the matrix `stored`.
    pub(super) fn tasks<S: Stored<V, N> + 'a, const V: usize, const N: usize>(
        self,
        stored: S,
    ) -> Tasks<'a> {
        let Product { proof, vnni, rows, parallel, acts, bias, x, y: target } = self;
        assert!(S::NARROW || acts == Acts::Words, "bytes beside narrow codes");
        let outputs = stored.outputs();
        let row_bytes = stored.bytes().1;
        let planes = vnni.filter(|_| S::WIDE && rows <= wide_direct::ROWS);
        let few = planes.is_some() || (vnni.is_none() && rows <= S::DIRECT_ROWS);
        let share = match (planes, few) {
            (Some(_), _) => share(outputs, row_bytes, wide_direct::OUTPUTS),
            (None, true) => share(outputs, row_bytes, LANES),
            (None, false) => share(outputs, row_bytes, OUTPUTS).min(TASK_OUTPUTS),
        };
        let shares = outputs.div_ceil(share);
        let wanted = (2 * current_threads()).div_ceil(shares.max(1));
        let parts = wanted.min(rows / PART_ROWS).max(1);
        let tile = if vnni.is_some() { tile_rows(rows, wide::ROWS) } else { ROWS };
        let part_rows = rows.div_ceil(parts).next_multiple_of(tile).max(tile);
        let parts = rows.div_ceil(part_rows).max(1); // Tiles are whole: fewer may do.
        let run = move |index: usize| {
            let (index, part) = (index % shares, index / shares);
            let rows = (part * part_rows).min(rows)..((part + 1) * part_rows).min(rows);
            let outputs = index * share..((index + 1) * share).min(outputs);
            let task = Task { bias, x, rows, outputs, vnni, target };
            let _: Avx2 = proof;
            if S::WIDE
                && let Some(proof) = planes
            {
                return match acts {
                    Acts::Bytes if S::NARROW => {
                        wide_direct::direct::<S, V, N, 1>(proof, &task, stored)
                    }
                    _ => wide_direct::direct::<S, V, N, 2>(proof, &task, stored),
                };
            }
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe {
                match (few, acts) {
                    (true, Acts::Bytes) if S::NARROW => direct::<S, V, N, BYTES>(&task, stored),
                    (false, Acts::Bytes) if S::NARROW => panels::<S, V, N, BYTES>(&task, stored),
                    (true, _) => direct::<S, V, N, WORDS>(&task, stored),
                    (false, _) => panels::<S, V, N, WORDS>(&task, stored),
                }
            }
        };
        Tasks::new(shares * parts, outputs * row_bytes, parallel, run)
    }
}
