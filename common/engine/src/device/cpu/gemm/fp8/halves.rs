//! FP8 weights on their way to f32: some inputs of an output at a time become f16 in the first-level cache, from where
//! processors widen them as they load them, which takes half of the instructions of doing that in registers.

use super::matrix::Row;
use crate::device::cpu::isa::prefetch::CACHE_LINE;
use crate::device::cpu::isa::simd::{LANES, Simd};

/// Inputs that become f16 at a time: so many that what there is to do for each time is little, and so few that f16 of
/// some outputs stay in the first-level cache. Of several blocks that share a scale, each divides it or is a multiple
/// of it.
pub(super) const CHUNK: usize = 512;
/// Numbers that a tier makes f16 of at a time.
const PIECE: usize = 128;

/// Some inputs of an output: f16 of the 256th parts of their numbers.
#[repr(align(64))] // No vector reaches over two cache lines.
pub(super) struct Halves([u8; 2 * CHUNK]);

impl Halves {
    pub(super) const ZERO: Halves = Halves([0; 2 * CHUNK]);

    /// Sets these to the numbers of `row` from `start` on, as many as there are and fit. Beside each cache line of
    /// whole pieces one from `ahead` on is prefetched.
    #[inline(always)]
    pub(super) fn set<S: Simd>(&mut self, simd: S, row: &Row<'_>, start: usize, ahead: *const u8) {
        let end = (start + CHUNK).min(row.numbers.len());
        let (pieces, tail) = row.numbers[start..end].as_chunks::<PIECE>();
        let to = self.0.as_chunks_mut::<{ 2 * PIECE }>().0;
        for (index, (from, to)) in pieces.iter().zip(&mut *to).enumerate() {
            for line in (0..PIECE).step_by(CACHE_LINE) {
                simd.prefetch(ahead.wrapping_add(index * PIECE + line));
            }
            simd.halves_of_e4m3(from, to);
        }
        if !tail.is_empty() {
            let mut padded = [0; PIECE];
            padded[..tail.len()].copy_from_slice(tail);
            simd.halves_of_e4m3(&padded, &mut to[pieces.len()]);
        }
    }

    /// Sixteen of them at a time.
    #[inline(always)]
    pub(super) fn vectors(&self) -> &[[u8; 2 * LANES]; CHUNK / LANES] {
        self.0.as_chunks().0.try_into().expect("as many as there are")
    }
}
