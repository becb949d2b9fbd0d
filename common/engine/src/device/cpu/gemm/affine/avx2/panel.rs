//! The integer GEMM of many rows: codes are packed, transposed, as words or narrow ones as bytes, into a panel that all
//! rows pass over, so that a lane belongs to one output and the accumulators of several rows fill the registers.

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and vector throughout")]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::direct::{add_as_words, add_words, in_lanes};
use super::packed::split;
use super::stored::{BYTES, LANES, Params, Stored, WORDS, in_lane};
use super::task::Task;
use crate::device::cpu::isa::prefetch::{CACHE_LINE, prefetch};
use crate::device::cpu::isa::x86::transposed8;

/// Vectors of outputs in a panel.
const VECTORS: usize = 2;
/// Outputs of a panel.
pub(super) const OUTPUTS: usize = VECTORS * LANES;
/// Rows of a register tile at most: their accumulators take 12 of the 16 registers.
pub(super) const ROWS: usize = 6;
/// Steps of a panel: 16 KiB, half of a first-level cache.
const STEPS: usize = 256;
/// Groups of a panel at most.
const GROUPS: usize = 32;
/// Steps of half a vector.
const HALF: usize = LANES / 2;
/// Of how many steps the products of bytes are added up as words, if it is all of a group's.
const AT_ONCE: usize = usize::MAX;
/// The same of codes that are words.
const NONE: usize = 0;
/// Bytes of a step of a row.
pub(super) const STEP_BYTES: usize = size_of::<i32>();

/// A pair of words, or four bytes, of every output of a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Step([__m256i; VECTORS]);

/// Packed weights that a thread works on.
pub(super) struct Panel {
    pub(super) steps: [Step; STEPS],
    /// Of [`LANES`] groups each.
    pub(super) params: [[Params; VECTORS]; GROUPS / LANES],
}

/// Bytes that a thread keeps.
pub(super) const PANEL_BYTES: u64 = size_of::<Panel>() as u64;

thread_local! {
    /// The panel that a thread works on.
    static PANEL: RefCell<Option<Box<Panel>>> = const { RefCell::new(None) };
}

/// All of `task`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn panels<S: Stored<V, N>, const V: usize, const N: usize, const WAY: u8>(
    task: &Task<'_>,
    stored: S,
) {
    const {
        assert!(!S::NARROW || S::SUMMED >= 2, "as few as are added up as words");
        assert!((STEPS * in_lane(WAY)).is_multiple_of(S::IN_PIECE), "panels of whole pieces");
        assert!((GROUPS * S::GROUP).is_multiple_of(S::IN_PIECE), "pieces in so many groups");
    }
    PANEL.with_borrow_mut(|panel| {
        let panel = panel.get_or_insert_with(|| {
            let mut panel = Box::<Panel>::new_uninit();
            // SAFETY: there is room for one, and zeros are vectors.
            unsafe {
                panel.as_mut_ptr().write_bytes(0, 1);
                panel.assume_init()
            }
        });
        let (total, depth) = (stored.groups(), (STEPS * in_lane(WAY) / S::GROUP).min(GROUPS));
        let (count, each) = match S::HALVES {
            true => (S::GROUP / (in_lane(WAY) * HALF), 2),
            false => (1, 1),
        };
        let runs = Runs { count, each, steps: S::GROUP / (in_lane(WAY) * count) };
        for start in (0..total).step_by(depth) {
            // All outputs beside a part of the inputs, which stays in the second-level cache meanwhile.
            for first in task.outputs.clone().step_by(OUTPUTS) {
                let groups = start..(start + depth).min(total);
                fill::<S, V, N, WAY>(task, stored, first, &groups, panel);
                let finished = groups.end == total;
                let held = Held { panel, first, groups, finished, runs };
                if let Some(proof) = task.vnni {
                    match WAY {
                        BYTES => task.wide_pass::<true>(proof, &held),
                        _ => task.wide_pass::<false>(proof, &held),
                    }
                    continue;
                }
                // Whether the products of a whole group may be added up as words.
                let at_once = S::GROUP / in_lane(BYTES) <= S::SUMMED;
                match (WAY, at_once, S::SUMMED) {
                    (BYTES, true, _) => task.pass::<AT_ONCE>(&held),
                    (BYTES, false, 8..) => task.pass::<8>(&held),
                    (BYTES, false, 4..8) => task.pass::<4>(&held),
                    (BYTES, false, _) => task.pass::<2>(&held),
                    _ => task.pass::<NONE>(&held),
                }
            }
        }
    });
}

/// Packs codes, scales and biases of `groups` of the outputs from `first` on, transposed, into the panel.
#[target_feature(enable = "avx2,fma,f16c")]
fn fill<S: Stored<V, N>, const V: usize, const N: usize, const WAY: u8>(
    task: &Task<'_>,
    stored: S,
    first: usize,
    groups: &Range<usize>,
    panel: &mut Panel,
) {
    let inputs = groups.start * S::GROUP..groups.end * S::GROUP;
    let pieces = inputs.start / S::IN_PIECE..inputs.end.div_ceil(S::IN_PIECE);
    // What is needed next, if that is beside the same inputs.
    let (piece_bytes, ahead) = (stored.piece_bytes(), OUTPUTS * stored.bytes().1);
    for vector in 0..VECTORS {
        let first = first + vector * LANES;
        if first >= task.outputs.end {
            break;
        }
        let rows = task.eight(stored, first);
        for (at, start) in groups.clone().step_by(LANES).enumerate() {
            let count = LANES.min(groups.end - start);
            // SAFETY: outputs of the matrix and groups of them; this function has the instructions.
            panel.params[at][vector] = unsafe { stored.params(&rows, start, count) };
        }
        for (piece, steps) in
            pieces.clone().zip(panel.steps.chunks_exact_mut(S::IN_PIECE / in_lane(WAY)))
        {
            let mut all = [[_mm256_setzero_ps(); LANES]; V];
            for lane in 0..LANES {
                let row = S::codes_of(rows[lane]);
                // SAFETY: an output of the matrix and a piece of it; this function has the instructions.
                let codes: [__m256i; V] = unsafe { stored.codes(row, piece) };
                for v in 0..V {
                    all[v][lane] = _mm256_castsi256_ps(codes[v]);
                }
                for line in (0..piece_bytes).step_by(CACHE_LINE) {
                    prefetch(row.wrapping_add(ahead + piece * piece_bytes + line));
                }
            }
            let sheaf = V / N;
            for v in 0..V {
                if WAY == WORDS {
                    // Of a sheaf the even words of all vectors, then the odd ones.
                    let first = 2 * (v / sheaf * sheaf) + v % sheaf;
                    let mut words = [[_mm256_setzero_ps(); LANES]; 2];
                    for lane in 0..LANES {
                        // SAFETY: this function has the instructions.
                        let [even, odd] = unsafe { split(_mm256_castps_si256(all[v][lane])) };
                        words[0][lane] = _mm256_castsi256_ps(even);
                        words[1][lane] = _mm256_castsi256_ps(odd);
                    }
                    put(&mut steps[first * LANES..][..LANES], vector, words[0]);
                    put(&mut steps[(first + sheaf) * LANES..][..LANES], vector, words[1]);
                } else {
                    put(&mut steps[v * LANES..][..LANES], vector, all[v]);
                }
            }
        }
    }
}

/// Makes columns of rows, one for each of so many steps.
#[target_feature(enable = "avx2")]
#[inline]
fn put(steps: &mut [Step], vector: usize, rows: [__m256; LANES]) {
    // SAFETY: this function has the instructions.
    let columns = unsafe { transposed8(rows) };
    for (step, column) in steps.iter_mut().zip(columns) {
        step.0[vector] = _mm256_castps_si256(column);
    }
}

/// What a panel holds.
pub(super) struct Held<'a> {
    pub(super) panel: &'a Panel,
    /// Groups of the outputs from this one on.
    pub(super) first: usize,
    pub(super) groups: Range<usize>,
    /// Whether there are no more groups.
    pub(super) finished: bool,
    pub(super) runs: Runs,
}

/// Which steps are those of a group: `count` runs of `steps` that follow each other, `each` runs apart; those of the
/// next groups are between them.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    count: usize,
    each: usize,
    pub(super) steps: usize,
}

impl Held<'_> {
    /// The first steps of the runs of group `group` of those held.
    #[inline(always)]
    pub(super) fn runs_of(&self, group: usize) -> impl Iterator<Item = usize> {
        let Runs { count, each, steps } = self.runs;
        let behind = group & (each - 1); // There is one of two.
        let first = ((group - behind) * count + behind) * steps;
        (0..count).map(move |run| first + run * each * steps)
    }

    /// The step of a row that the first one of the panel is multiplied with.
    pub(super) fn first_step(&self) -> usize {
        self.groups.start * self.runs.count * self.runs.steps
    }

    /// How many steps all groups take, which are there, as are their scales and biases.
    ///
    /// # Panics
    /// If they are not.
    #[inline(always)]
    pub(super) fn steps(&self) -> usize {
        let Held { panel, ref groups, runs, .. } = *self;
        let count = groups.len();
        // Those of a neighbour are there, too, that the last group has not.
        let steps = count.next_multiple_of(runs.each) * runs.count * runs.steps;
        assert!(steps <= panel.steps.len() && count <= LANES * panel.params.len());
        steps
    }
}

/// What a tile needs of a row.
#[derive(Clone, Copy)]
struct Row<'a> {
    /// The bytes of the codes that the first step of the panel is multiplied with, and what is behind them.
    codes: &'a [u8],
    /// The scales and the sums of the groups that are held.
    scales: &'a [f32],
    sums: &'a [f32],
}

impl Task<'_> {
    /// All rows over what is held: words ([`NONE`]), or bytes, of which the products of so many steps, a power of two,
    /// are added up as words, or those of a group [`AT_ONCE`].
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pass<const SUMMED: usize>(&self, held: &Held<'_>) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            // As even as can be: two tiles of four rows rather than of six and two.
            row += match left.div_ceil(left.div_ceil(ROWS)) {
                1 => self.tile::<1, SUMMED>(held, row),
                2 => self.tile::<2, SUMMED>(held, row),
                3 => self.tile::<3, SUMMED>(held, row),
                4 => self.tile::<4, SUMMED>(held, row),
                5 => self.tile::<5, SUMMED>(held, row),
                _ => self.tile::<ROWS, SUMMED>(held, row),
            };
        }
    }

    /// A register tile: adds the products of what is held to the accumulators of `R` rows from `row` on; returns `R`.
    /// Between panels, the accumulators lie in the result.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn tile<const R: usize, const SUMMED: usize>(&self, held: &Held<'_>, row: usize) -> usize {
        let Held { first, ref groups, finished, .. } = *held;
        let vectors = (self.outputs.end - first).div_ceil(LANES).min(VECTORS);
        let mut y = [[_mm256_setzero_ps(); VECTORS]; R];
        if groups.start > 0 {
            for r in 0..R {
                for v in 0..vectors {
                    y[r][v] = self.read_target(row + r, first + v * LANES);
                }
            }
        }
        let start = held.first_step() * STEP_BYTES;
        let mut rows = [Row { codes: &[], scales: &[], sums: &[] }; R];
        for r in 0..R {
            rows[r] = Row {
                codes: &self.x.lanes(row + r).0[start..],
                scales: &self.x.scales(row + r)[groups.clone()],
                sums: &self.x.sums(row + r)[groups.clone()],
            };
        }
        y = chains::<R, SUMMED>(held, &rows, y);
        for r in 0..R {
            for v in 0..vectors {
                self.write_target(row + r, first + v * LANES, y[r][v], finished);
            }
        }
        R
    }
}

/// Adds the products of what is held to the f32 accumulators `y` of `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)] // Inlined, rows become one address with a stride, of which every product computes its own.
fn chains<const R: usize, const SUMMED: usize>(
    held: &Held<'_>,
    rows: &[Row<'_>; R],
    mut y: [[__m256; VECTORS]; R],
) -> [[__m256; VECTORS]; R] {
    let Held { panel, ref groups, .. } = *held;
    let (steps, count) = (held.steps(), groups.len());
    let whole = |row: &Row<'_>| {
        steps * STEP_BYTES <= row.codes.len()
            && count <= row.scales.len()
            && count <= row.sums.len()
    };
    assert!(rows.iter().all(whole), "codes, scales and sums of all groups");
    for group in 0..count {
        // SAFETY: the steps of a group of those above.
        let dots = unsafe { dots::<R, SUMMED>(held, rows, group) };
        // SAFETY: the group is one of as many as there are of each.
        let params = unsafe { panel.params.get_unchecked(group / LANES) };
        for r in 0..R {
            // SAFETY: as above.
            let (scale, sum) = unsafe {
                (*rows[r].scales.get_unchecked(group), *rows[r].sums.get_unchecked(group))
            };
            let (scale, sum) = (_mm256_set1_ps(scale), _mm256_set1_ps(sum));
            for v in 0..VECTORS {
                y[r][v] = params[v].chain(group % LANES, (scale, sum), dots[r][v], y[r][v]);
            }
        }
    }
    y
}

/// The micro-kernel: integer dot products with `R` rows of the steps of group `group` of those held.
///
/// # Safety
/// There are as many steps and, of each row, codes as the runs of the group reach.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn dots<const R: usize, const SUMMED: usize>(
    held: &Held<'_>,
    rows: &[Row<'_>; R],
    group: usize,
) -> [[__m256i; VECTORS]; R] {
    let Held { panel: Panel { steps, .. }, runs, .. } = *held;
    let mut x = [std::ptr::null::<i32>(); R];
    for r in 0..R {
        x[r] = rows[r].codes.as_ptr().cast();
    }
    // One step in an iteration: of more the compiler adds up the products first, and the registers do not suffice.
    macro_rules! add {
        ($sums:ident, $steps:expr, $add:expr) => {
            for step in $steps {
                // SAFETY: the caller's promise.
                let codes = unsafe { steps.get_unchecked(step).0 };
                for r in 0..R {
                    // SAFETY: as above.
                    let lane = _mm256_set1_epi32(unsafe { x[r].add(step).read_unaligned() });
                    for v in 0..VECTORS {
                        $sums[r][v] = $add($sums[r][v], codes[v], lane);
                    }
                }
            }
        };
    }
    let mut dots = [[_mm256_setzero_si256(); VECTORS]; R];
    for at in held.runs_of(group) {
        match SUMMED {
            NONE => add!(dots, at..at + runs.steps, add_words),
            AT_ONCE => add!(dots, at..at + runs.steps, add_as_words),
            _ => {
                for at in (at..at + runs.steps).step_by(SUMMED) {
                    let mut words = [[_mm256_setzero_si256(); VECTORS]; R];
                    add!(words, at..at + SUMMED.min(runs.steps), add_as_words);
                    for r in 0..R {
                        for v in 0..VECTORS {
                            let ones = _mm256_set1_epi16(1);
                            dots[r][v] = add_words(dots[r][v], words[r][v], ones);
                        }
                    }
                }
            }
        }
    }
    if SUMMED == AT_ONCE {
        for r in 0..R {
            for v in 0..VECTORS {
                dots[r][v] = in_lanes(dots[r][v]);
            }
        }
    }
    dots
}
