//! What the GEMM and GEMV kernels share: a task.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::activations::Activations;
use super::stored::{LANES, Stored};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::isa::x86::Avx512Vnni;

/// One task of a product: some rows, some outputs.
pub(super) struct Task<'a> {
    pub(super) bias: Option<&'a [f32]>,
    /// In lanes or tiles, or as planes.
    pub(super) x: &'a Activations,
    pub(super) rows: Range<usize>,
    pub(super) outputs: Range<usize>,
    /// Proof that the processor multiplies and accumulates at once, in vectors of 64 bytes, if it does.
    pub(super) vnni: Option<Avx512Vnni>,
    /// Other tasks have other elements of it.
    pub(super) target: Target<'a>,
}

impl Task<'_> {
    /// Where the eight outputs from `first` on lie; past the end, the last one.
    #[inline(always)]
    pub(super) fn eight<S: Stored<V, N>, const V: usize, const N: usize>(
        &self,
        stored: S,
        first: usize,
    ) -> [S::Row; LANES] {
        let mut rows = [stored.row(first); LANES];
        for (lane, row) in rows.iter_mut().enumerate() {
            *row = stored.row((first + lane).min(self.outputs.end - 1));
        }
        rows
    }

    /// What the target has of the eight outputs from `first` on, zeros past the end.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn read_target(&self, row: usize, first: usize) -> __m256 {
        let count = LANES.min(self.outputs.end - first);
        // SAFETY: no other task has these elements, and this one holds one part at a time and wrote it before.
        let part = unsafe { self.target.written(row, first, count) };
        let mut lanes = [0.0; LANES];
        let from = match part.first_chunk() {
            Some(whole) => whole,
            None => {
                lanes[..count].copy_from_slice(part);
                &lanes
            }
        };
        // SAFETY: a whole array.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    /// Writes the eight outputs from `first` on, with the layer's bias if they are `finished`.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn write_target(&self, row: usize, first: usize, y: __m256, finished: bool) {
        let count = LANES.min(self.outputs.end - first);
        let mut lanes = [0.0; LANES];
        // SAFETY: a whole array.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), y) };
        if let Some(bias) = self.bias.filter(|_| finished) {
            for (lane, bias) in lanes.iter_mut().zip(&bias[first..][..count]) {
                *lane += bias;
            }
        }
        // SAFETY: no other task has these elements, and this one holds one part at a time.
        let part = unsafe { self.target.part(row, first, count) };
        match part.first_chunk_mut() {
            Some(whole) => *whole = lanes.map(MaybeUninit::new),
            None => part.iter_mut().zip(lanes).for_each(|(to, lane)| _ = to.write(lane)),
        }
    }
}
