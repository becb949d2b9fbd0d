//! Whole-number products with tile registers (AMX), which multiply 16 outputs with 16 rows at a time.
//!
//! The codes of some groups of some outputs are copied, widened to bytes, into tiles; all rows pass
//! over them. A group takes a product with each plane of the activations, whose sums are joined and
//! scaled while the next group is multiplied.

#![allow(clippy::needless_range_loop, reason = "vectors are indexed by output throughout")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::amx::{Amx, Finish, TILE_ROWS, Tiles, transpose_into};
use super::super::simd::LANES;
use super::super::target::Target;
use super::super::x86::Line;
use super::activations::Activations;
use super::vnni::{PARAM_GROUPS, Params, Task, prefetch};
use super::{Bits, Call};
use crate::pool::{for_each_apart, for_each_mut};

/// Codes of one step: those of one row of a tile.
const STEP: usize = 64;
/// Tiles of outputs computed together: so many that products of one are on their way while those of
/// the other are stored.
const STRIP: usize = 2;
/// Most tiles of outputs of a task.
const TILES: usize = 4 * STRIP;
/// Most outputs of a task.
const OUTPUTS: usize = TILES * TILE_ROWS;
/// Tiles of rows that pass over the weights of a task at a time: their sums are 256 KiB.
const PASS: usize = 32;
/// Most codes of each output in a block: [`PARAM_GROUPS`] of the widest groups.
const BLOCK: usize = PARAM_GROUPS * super::MAX_GROUP;

/// What a thread works on.
#[derive(Default)]
struct Scratch {
    /// The codes of a block: `[tile of outputs, step, line]`.
    codes: Vec<Line>,
    /// Sums: `[tile of rows, tile of outputs, line]`, from zero on.
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Upper bounds of the bytes of [`Packed`] for `rows` rows of so many inputs, and of what each thread
/// keeps.
pub(super) fn product_bytes(inputs: u64, rows: u64) -> (u64, u64) {
    // A scale and a sum for each of the smallest groups.
    let params = inputs.div_ceil(super::MIN_GROUP as u64) * 2 * size_of::<f32>() as u64;
    let row = inputs.next_multiple_of(STEP as u64) * 2 + params;
    let rows = rows.div_ceil(TILE_ROWS as u64).saturating_mul(TILE_ROWS as u64);
    let kept = OUTPUTS * BLOCK + PASS * TILES * size_of::<Tile>();
    (row.saturating_mul(rows), kept as u64)
}

type Tile = [Line; TILE_ROWS];

/// The product in the arithmetic of [`Numerics::Fast`](crate::options::Numerics::Fast).
pub(super) fn matmul(proof: Amx, call: Call<'_>, x: &Activations, packed: &Packed) -> Vec<f32> {
    let Call { weight, bias, .. } = call;
    let (rows, outputs) = (call.rows(), weight.outputs());
    let mut y = vec![0.0; rows * outputs];
    let target = Target::new(&mut y, outputs);
    let share = call.share(STRIP * TILE_ROWS).min(OUTPUTS);
    let run = |task: usize| {
        let outputs = task * share..((task + 1) * share).min(outputs);
        let task = Task { weight, bias, x, rows: 0..rows, outputs, target };
        SCRATCH.with_borrow_mut(|scratch| {
            let tiles = Tiles::new(proof, weight.group.min(STEP));
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { task.run_tiles(&tiles, packed, scratch) }
        });
    };
    let tasks = outputs.div_ceil(share);
    if call.parallel {
        for_each_apart(tasks, run);
    } else {
        (0..tasks).for_each(run);
    }
    y
}

/// Activations as tiles. Rows and inputs past the end are zero.
pub(super) struct Packed {
    /// `[tile of rows, step, plane, line]`, where a line has four codes of 16 rows.
    planes: Vec<Tile>,
    /// `[tile of rows, group]`: the scales of 16 rows, and the sums.
    params: Vec<[Line; 2]>,
    steps: usize,
    groups: usize,
}

impl Packed {
    /// Packs the activations of `call`, which `x` has as planes.
    pub(super) fn new(proof: Amx, call: &Call<'_>, x: &Activations) -> Packed {
        let (rows, groups) = (call.rows(), call.weight.groups());
        let steps = call.weight.inputs.div_ceil(STEP);
        let tiles = rows.div_ceil(TILE_ROWS);
        let mut packed = Packed {
            planes: Vec::with_capacity(tiles * steps * 2),
            params: vec![[Line::ZERO; 2]; tiles * groups],
            steps,
            groups,
        };
        let spare = &mut packed.planes.spare_capacity_mut()[..tiles * steps * 2];
        let planes = spare.chunks_exact_mut(steps * 2);
        let mut tiles: Vec<_> = planes.zip(packed.params.chunks_exact_mut(groups)).collect();
        let run =
            |tile: usize, (planes, params): &mut (&mut [MaybeUninit<Tile>], &mut [[Line; 2]])| {
                let rows = tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(rows);
                let _: Amx = proof;
                // SAFETY: `proof` is there, so the processor has the instructions.
                unsafe { pack(x, &rows, planes, params) }
            };
        match call.parallel {
            true => for_each_mut(&mut tiles, run),
            false => tiles.iter_mut().enumerate().for_each(|(index, tile)| run(index, tile)),
        }
        let count = tiles.len() * steps * 2;
        // SAFETY: `pack` writes all tiles of all steps.
        unsafe { packed.planes.set_len(count) };
        packed
    }

    /// The planes and parameters of a tile of rows for some groups of so many codes.
    fn part(&self, tile: usize, groups: &Range<usize>, group: usize) -> (&[Tile], &[[Line; 2]]) {
        let planes = &self.planes[tile * self.steps * 2..][..self.steps * 2];
        let steps = groups.start * group / STEP..(groups.end * group).div_ceil(STEP);
        let params = &self.params[tile * self.groups..][..self.groups];
        (&planes[steps.start * 2..steps.end * 2], &params[groups.clone()])
    }
}

/// Packs the rows of a tile.
#[target_feature(enable = "avx512f")]
fn pack(
    x: &Activations,
    rows: &Range<usize>,
    planes: &mut [MaybeUninit<Tile>],
    params: &mut [[Line; 2]],
) {
    for (step, planes) in planes.chunks_exact_mut(2).enumerate() {
        let mut high = [_mm512_setzero_si512(); LANES];
        let mut low = high;
        for (lane, row) in rows.clone().enumerate() {
            let planes = x.planes(row);
            let [a, b] =
                [planes.high, planes.low].map(|plane| plane[step * STEP..][..STEP].as_ptr());
            // SAFETY: the slices are a vector long.
            (high[lane], low[lane]) =
                unsafe { (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast())) };
        }
        transpose_into(high, &mut planes[0]);
        transpose_into(low, &mut planes[1]);
    }
    for (lane, row) in rows.clone().enumerate() {
        let values = x.scales(row).iter().zip(x.sums(row));
        for (params, (scale, sum)) in params.iter_mut().zip(values) {
            params[0].set_lane(lane, *scale);
            params[1].set_lane(lane, *sum);
        }
    }
}

/// One strip of one block with one tile of rows.
struct Block<'a> {
    /// `[tile of the strip, step, line]`.
    codes: [&'a [Line]; STRIP],
    /// `[step, plane]`.
    planes: &'a [Tile],
    /// Scales and sums of the rows, for each group.
    x_params: &'a [[Line; 2]],
    params: &'a [Params<1>; STRIP],
    group: usize,
    /// What to ask memory for, a line per group.
    ahead: [*const u8; STRIP],
}

impl Task<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn run_tiles(&self, tiles: &Tiles, packed: &Packed, scratch: &mut Scratch) {
        let count = self.outputs.len().div_ceil(STRIP * TILE_ROWS) * STRIP;
        let row_tiles = self.rows.len().div_ceil(TILE_ROWS);
        let mut params = [const { [const { Params::<1>::ZERO }; STRIP] }; TILES / STRIP];
        let params = &mut params[..count / STRIP];
        for first in (0..row_tiles).step_by(PASS) {
            let pass = first..(first + PASS).min(row_tiles);
            scratch.sums.clear();
            scratch.sums.resize(pass.len() * count * TILE_ROWS, Line::ZERO);
            for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let groups = first..(first + PARAM_GROUPS).min(self.weight.groups());
                for (tile, params) in params.as_flattened_mut().iter_mut().enumerate() {
                    let first = self.outputs.start + tile * TILE_ROWS;
                    let end = (first + TILE_ROWS).min(self.outputs.end);
                    let outputs = first.min(end)..end;
                    self.fill_params(&outputs, &groups, params);
                }
                self.fill_tiles(&groups, count, &mut scratch.codes);
                self.pass_tiles(tiles, &pass, &groups, packed, params, scratch);
            }
        }
    }

    /// Copies the codes of some groups as bytes; outputs past the end are zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn fill_tiles(&self, groups: &Range<usize>, count: usize, lines: &mut Vec<Line>) {
        let row_bytes = self.weight.row_bytes();
        let bytes = groups.start * self.group_bytes()..groups.end * self.group_bytes();
        let step_bytes = STEP / self.weight.bits.per_byte();
        let steps = bytes.len().div_ceil(step_bytes);
        lines.resize(count * steps * TILE_ROWS, Line::ZERO);
        for (tile, lines) in lines.chunks_exact_mut(steps * TILE_ROWS).take(count).enumerate() {
            let first = self.outputs.start + tile * TILE_ROWS;
            let there = self.outputs.end.saturating_sub(first).min(TILE_ROWS);
            let rows = self.weight.codes.get(first * row_bytes..).unwrap_or(&[]);
            let rows = &rows[..there * row_bytes];
            for (lines, at) in
                lines.chunks_exact_mut(TILE_ROWS).zip(bytes.clone().step_by(step_bytes))
            {
                let end = (at + step_bytes).min(bytes.end);
                lines[there..].fill(Line::ZERO);
                for (line, row) in lines.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                    widen(self.weight.bits, &row[at..end], line);
                }
            }
        }
    }

    /// Continues the chains of some tiles of rows with the groups of a block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn pass_tiles(
        &self,
        tiles: &Tiles,
        rows: &Range<usize>,
        groups: &Range<usize>,
        packed: &Packed,
        params: &[[Params<1>; STRIP]],
        scratch: &mut Scratch,
    ) {
        let sums = scratch.sums.as_chunks_mut::<TILE_ROWS>().0.as_chunks_mut().0;
        let tile_lines = scratch.codes.len() / (params.len() * STRIP);
        let mut ahead = self.ahead(groups);
        let finish = Finish { bias: self.bias, target: self.target };
        for (row, sums) in rows.clone().zip(sums.chunks_exact_mut(params.len())) {
            let (planes, x_params) = packed.part(row, groups, self.weight.group);
            let codes = scratch.codes.chunks_exact(STRIP * tile_lines);
            for (((strip, params), codes), sums) in params.iter().enumerate().zip(codes).zip(sums) {
                let (first, second) = codes.split_at(tile_lines);
                let nothing = planes.as_ptr().cast();
                let block = Block {
                    codes: [first, second],
                    planes,
                    x_params,
                    params,
                    group: self.weight.group,
                    ahead: [(); STRIP].map(|()| ahead.next().unwrap_or(nothing)),
                };
                block.multiply(tiles, sums);
                if groups.end == self.weight.groups() {
                    for (tile, sums) in sums.iter().enumerate() {
                        let first = self.outputs.start + (strip * STRIP + tile) * TILE_ROWS;
                        let outputs = first..(first + TILE_ROWS).min(self.outputs.end);
                        let rows = row * TILE_ROWS..((row + 1) * TILE_ROWS).min(self.rows.end);
                        // SAFETY: `matmul` gives each of its tasks other outputs.
                        unsafe { finish.write(sums, outputs, rows) };
                    }
                }
            }
        }
    }

    /// The codes that are needed next, to be asked for meanwhile: those of the next block, or of the
    /// first one of the next task.
    fn ahead(&self, groups: &Range<usize>) -> impl Iterator<Item = *const u8> {
        let row_bytes = self.weight.row_bytes();
        let (first, at) = match groups.end < self.weight.groups() {
            true => (self.outputs.start, groups.end * self.group_bytes()),
            false => (self.outputs.end, 0),
        };
        let last = (first + self.outputs.len()).min(self.weight.outputs());
        let bytes = self.weight.codes.as_ptr();
        (first..last).map(move |row| bytes.wrapping_add(row * row_bytes + at))
    }
}

/// Sums of products of a strip with both planes: `[tile of the strip, plane]`.
type Dots = [[Tile; 2]; STRIP];

/// Outputs whose chains go on between two instructions on tiles: what keeps both kinds of units busy,
/// since the processor does not look far enough ahead to find the one kind behind the other.
const PART: usize = TILE_ROWS * STRIP / 8;

/// Instructions on tile registers that lie `s` bytes apart in memory. Nothing but this module uses the
/// registers, so they keep what they hold from one to the next.
macro_rules! tile {
    ($($line:literal),+; $($name:ident = $value:expr),*) => {
        asm!(
            $($line,)+
            $($name = in(reg) $value,)*
            s = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}

impl Block<'_> {
    /// Continues the chains of a strip, which has a line of 16 rows for each output.
    #[target_feature(enable = "avx512f")]
    fn multiply(&self, tiles: &Tiles, sums: &mut [Tile; STRIP]) {
        let groups = self.x_params.len();
        let [mut even, mut odd] = [[[[Line::ZERO; TILE_ROWS]; 2]; STRIP]; 2];
        self.round::<true, false>(tiles, 0, &mut even, &odd, sums);
        for group in 1..=groups {
            let (next, last) = if group % 2 == 0 { (&mut even, &odd) } else { (&mut odd, &even) };
            if group < groups {
                self.round::<true, true>(tiles, group, next, last, sums);
            } else {
                self.round::<false, true>(tiles, group, next, last, sums);
            }
        }
    }

    /// With `NEXT`, multiplies `group` into `next`; with `LAST`, continues the chains with the group
    /// before, whose products are `last`. The two take turns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn round<const NEXT: bool, const LAST: bool>(
        &self,
        _: &Tiles,
        group: usize,
        next: &mut Dots,
        last: &Dots,
        sums: &mut [Tile; STRIP],
    ) {
        let steps = (self.group / STEP).max(1);
        // Of a group of half a step, the second half of a line of codes, and of the lines of a plane.
        let (step, half) = (group * self.group / STEP, group * self.group % STEP);
        let mut at = [std::ptr::null::<u8>(); 3];
        if NEXT {
            let lines = step * TILE_ROWS..(step + steps) * TILE_ROWS;
            let planes = &self.planes[step * 2..(step + steps) * 2];
            let half_planes = half / 4 * size_of::<Line>();
            at = [
                self.codes[0][lines.clone()].as_ptr().cast::<u8>().wrapping_add(half),
                self.codes[1][lines].as_ptr().cast::<u8>().wrapping_add(half),
                planes.as_ptr().cast::<u8>().wrapping_add(half_planes),
            ];
            for ahead in self.ahead {
                prefetch(ahead.wrapping_add(group * size_of::<Line>()));
            }
            // SAFETY: the slices have the tiles of all steps, and the second halves of the only one;
            // the tile registers are set up for whole or half steps, by the group of the same weight.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem, preserves_flags),
                );
                for _ in 1..steps {
                    tile!(
                        "tileloadd tmm4, [{v} + {s}]", "tileloadd tmm6, [{x} + {s}]",
                        "tdpbusd tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{x} + {s} + 1024]", "tdpbusd tmm1, tmm4, tmm7",
                        "tileloadd tmm5, [{w} + {s}]", "tdpbusd tmm2, tmm5, tmm6",
                        "tdpbusd tmm3, tmm5, tmm7";
                        v = at[0], w = at[1], x = at[2]
                    );
                    let tile = size_of::<Tile>();
                    at = [at[0].add(tile), at[1].add(tile), at[2].add(2 * tile)];
                }
            }
        }
        let [v, w, x] = at;
        let to = next.as_mut_ptr().cast::<u8>();
        // One instruction or two on tiles, then a part of the chains: written out, as a loop might stay
        // one.
        macro_rules! turn {
            ($part:literal, $tiles:expr) => {
                if NEXT {
                    // SAFETY: as above; `next` has four tiles.
                    unsafe { $tiles }
                }
                if LAST {
                    self.chain(group - 1, $part, last, sums);
                }
            };
        }
        turn!(
            0,
            tile!(
                "tileloadd tmm4, [{v} + {s}]", "tileloadd tmm6, [{x} + {s}]",
                "tdpbusd tmm0, tmm4, tmm6"; v = v, x = x
            )
        );
        turn!(1, tile!("tileloadd tmm7, [{x} + {s} + 1024]", "tdpbusd tmm1, tmm4, tmm7"; x = x));
        turn!(2, tile!("tileloadd tmm5, [{w} + {s}]", "tdpbusd tmm2, tmm5, tmm6"; w = w));
        turn!(
            3,
            asm!("tdpbusd tmm3, tmm5, tmm7", out("tmm3") _, options(nostack, preserves_flags))
        );
        turn!(4, tile!("tilestored [{d} + {s}], tmm0"; d = to));
        turn!(5, tile!("tilestored [{d} + {s} + 1024], tmm1"; d = to));
        turn!(6, tile!("tilestored [{d} + {s} + 2048], tmm2"; d = to));
        turn!(7, tile!("tilestored [{d} + {s} + 3072], tmm3"; d = to));
    }

    /// Continues the chains of one of eight parts of the outputs with the products of a group.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn chain(&self, group: usize, part: usize, dots: &Dots, sums: &mut [Tile; STRIP]) {
        let (tile, first) = (part * PART / TILE_ROWS, part * PART % TILE_ROWS);
        let [high, low] = &dots[tile];
        let [scale, sum] = &self.x_params[group];
        let (scale, sum) = (_mm512_castsi512_ps(scale.read()), _mm512_castsi512_ps(sum.read()));
        let [[scales], [biases]] = self.params[tile].group(group);
        for output in first..first + PART {
            let high = _mm512_slli_epi32::<8>(high[output].read());
            let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(high, low[output].read()));
            let scale = _mm512_mul_ps(_mm512_set1_ps(scales.lane(output)), scale);
            let y = &mut sums[tile][output];
            let chain = _mm512_fmadd_ps(scale, dot, _mm512_castsi512_ps(y.read()));
            let bias = _mm512_set1_ps(biases.lane(output));
            y.write(_mm512_castps_si512(_mm512_fmadd_ps(bias, sum, chain)));
        }
    }
}

/// Codes as bytes, in the order of [`Activations`]; the rest of the line is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn widen(bits: Bits, codes: &[u8], line: &mut Line) {
    // SAFETY: masked loads touch the bytes of the slice alone.
    let load = |most: usize| unsafe {
        let mask = u64::MAX >> (64 - codes.len().min(most));
        _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast())
    };
    line.write(match bits {
        Bits::Eight => load(STEP),
        Bits::Four => {
            // 16 bytes are 32 codes: 16 low halves, then 16 high ones.
            let codes = load(STEP / 2);
            let low = _mm512_set1_epi8(0xf);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
            let order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            _mm512_permutex2var_epi64(_mm512_and_si512(codes, low), order, high)
        }
    });
}
