//! Few rows with tile registers: both planes of eight rows are the 16 columns of one tile, and codes
//! of bytes are multiplied as they lie in memory, which sets the pace.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::super::AHEAD;
use super::super::super::amx::{Amx, TILE_ROWS, Tiles, tile, transpose_into, zero};
use super::super::super::simd::LANES;
use super::super::super::x86::{Line, prefetch};
use super::super::activations::Activations;
use super::super::vnni::{PARAM_GROUPS, Params, Task};
use super::super::{Bits, Call};
use super::{STEP, Tile, widen};
use crate::pool::Tasks;

/// Most rows: half the columns of a tile.
pub(in super::super) const FEW_ROWS: usize = TILE_ROWS / 2;
/// Tiles of outputs computed together.
const STRIP: usize = 2;
/// Outputs of them.
const OUTPUTS: usize = STRIP * TILE_ROWS;
/// Pairs of outputs: a vector has the rows of two.
const PAIRS: usize = OUTPUTS / 2;

/// At most [`FEW_ROWS`] rows of activations. Rows and inputs past the end are zero.
pub(in super::super) struct FewPacked {
    /// For each step a tile, a line of which has four codes of every row: the upper plane, then the
    /// lower one.
    planes: Vec<Tile>,
    /// For each group the scales of the rows, twice, and the sums, twice.
    params: Vec<[Line; 2]>,
}

impl FewPacked {
    /// Packs the activations of `call`, which `x` has as planes.
    pub(in super::super) fn new(proof: Amx, call: &Call<'_>, x: &Activations) -> FewPacked {
        let steps = call.weight.inputs.div_ceil(STEP);
        let mut planes = Vec::with_capacity(steps);
        let mut params = vec![[Line::ZERO; 2]; call.weight.groups()];
        let _: Amx = proof;
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe { pack(x, call.rows(), &mut planes.spare_capacity_mut()[..steps]) };
        // SAFETY: `pack` writes all of them.
        unsafe { planes.set_len(steps) };
        for row in 0..call.rows() {
            let values = x.scales(row).iter().zip(x.sums(row));
            for (params, (scale, sum)) in params.iter_mut().zip(values) {
                for lane in [row, FEW_ROWS + row] {
                    params[0].set_lane(lane, *scale);
                    params[1].set_lane(lane, *sum);
                }
            }
        }
        FewPacked { planes, params }
    }
}

/// Packs the planes of so many rows.
#[target_feature(enable = "avx512f")]
fn pack(x: &Activations, rows: usize, tiles: &mut [MaybeUninit<Tile>]) {
    for (step, tile) in tiles.iter_mut().enumerate() {
        let mut square = [_mm512_setzero_si512(); LANES];
        for row in 0..rows {
            let planes = x.planes(row);
            for (plane, codes) in [planes.high, planes.low].into_iter().enumerate() {
                let codes = codes[step * STEP..][..STEP].as_ptr();
                // SAFETY: the slice is a vector long.
                square[plane * FEW_ROWS + row] = unsafe { _mm512_loadu_si512(codes.cast()) };
            }
        }
        transpose_into(square, tile);
    }
}

/// The product with at most [`FEW_ROWS`] rows.
pub(in super::super) fn matmul<'a>(
    proof: Amx,
    call: Call<'a>,
    (x, packed): (&'a Activations, &'a FewPacked),
    y: &'a mut [f32],
) -> Tasks<'a> {
    let Call { weight, bias, .. } = call;
    let rows = call.rows();
    assert!(rows <= FEW_ROWS, "few rows");
    call.by_outputs(call.share(OUTPUTS), y, move |outputs, target| {
        let task = Task { weight, bias, x, rows: 0..rows, outputs, target };
        let tiles = Tiles::new(proof, weight.group.min(STEP));
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe {
            match task.group_bytes() {
                16 => task.run_few::<8>(&tiles, packed),
                32 => task.run_few::<16>(&tiles, packed),
                64 => task.run_few::<32>(&tiles, packed),
                128 => task.run_few::<64>(&tiles, packed),
                bytes => unreachable!("a group of {bytes} bytes"),
            }
        };
    })
}

/// Codes of a step of a strip as bytes, where they do not lie so.
type Copied = [Tile; STRIP];

/// Sums of products of a strip: a line for each output.
type Dots = [Tile; STRIP];

impl Task<'_> {
    /// All of the task; the codes of a group of a strip are `LINES` lines of memory.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn run_few<const LINES: usize>(&self, tiles: &Tiles, packed: &FewPacked) {
        let mut params = [const { Params::<1>::ZERO }; STRIP];
        let (mut copied, mut dots) =
            ([[Line::ZERO; TILE_ROWS]; STRIP], [[[Line::ZERO; TILE_ROWS]; STRIP]; 2]);
        let row_bytes = self.weight.row_bytes();
        for first in self.outputs.clone().step_by(OUTPUTS) {
            let outputs = first..(first + OUTPUTS).min(self.outputs.end);
            let codes = &self.weight.codes[first * row_bytes..outputs.end * row_bytes];
            let mut y = [_mm512_setzero_ps(); PAIRS];
            for begin in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let held = begin..(begin + PARAM_GROUPS).min(self.weight.groups());
                for (tile, params) in params.iter_mut().enumerate() {
                    let first = (first + tile * TILE_ROWS).min(outputs.end);
                    let tile = first..(first + TILE_ROWS).min(outputs.end);
                    self.fill_params(&tile, &held, true, params);
                }
                // The products of a group are on their way while the chains take those before, a part
                // of one after a part of the other: a processor looks only so far ahead.
                for group in begin..=held.end {
                    let [even, odd] = &mut dots;
                    let (to, dots) = if group % 2 == 0 { (even, odd) } else { (odd, even) };
                    let last = group.max(begin + 1) - 1;
                    let ahead = self.ahead_of(first, last);
                    let link = Link { params: &params, x: &packed.params[last], dots, ahead };
                    macro_rules! extend {
                        ($from:literal .. $to:literal) => {
                            if group > begin {
                                link.extend::<LINES, $from, $to>(last - begin, &mut y);
                            }
                        };
                    }
                    if group == held.end {
                        extend!(0..16);
                        break;
                    }
                    let step = self.begin_group(tiles, codes, packed, group, &mut copied);
                    extend!(0..4);
                    step.multiply_first();
                    extend!(4..8);
                    step.multiply_second();
                    extend!(8..12);
                    store_first(tiles, to);
                    extend!(12..16);
                    store_second(tiles, to);
                }
            }
            self.finish(&outputs, &y);
        }
    }

    /// What memory is asked for while a group is computed: in the order that rows lie in, which it
    /// is fastest in and this kernel's own is not; so at least as far ahead as the next strip.
    fn ahead_of(&self, output: usize, group: usize) -> *const u8 {
        let row_bytes = self.weight.row_bytes();
        let here = output * row_bytes + OUTPUTS * group * self.group_bytes();
        self.weight.codes.as_ptr().wrapping_add(here + AHEAD.max(OUTPUTS * row_bytes))
    }

    /// Multiplies all steps but the last of a group of the outputs whose codes these are; of that
    /// one the first operands are loaded.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn begin_group<'a>(
        &self,
        tiles: &'a Tiles,
        codes: &'a [u8],
        packed: &FewPacked,
        group: usize,
        copied: &'a mut Copied,
    ) -> Step<'a> {
        let row_bytes = self.weight.row_bytes();
        let step_codes = self.weight.group.min(STEP);
        let as_they_lie = self.weight.bits == Bits::Eight && codes.len() == OUTPUTS * row_bytes;
        assert_eq!(tiles.row_bytes(), (step_codes, size_of::<Line>()), "tiles of a step");
        zero(tiles);
        let end = (group + 1) * self.weight.group;
        let mut at = group * self.weight.group;
        loop {
            let (from, stride) = match as_they_lie {
                true => {
                    let rows = &codes[at..][..(OUTPUTS - 1) * row_bytes + step_codes];
                    (rows.as_ptr(), row_bytes)
                }
                false => {
                    self.copy_step(codes, at, step_codes, copied);
                    (copied.as_ptr().cast(), size_of::<Line>())
                }
            };
            // Of a group of half a step, perhaps the second half of the lines.
            let plane = packed.planes[at / STEP][at % STEP / 4..][..step_codes / 4].as_ptr();
            // SAFETY: there are tile registers for so many codes. At `from` are those of a whole
            // strip, or a copy of them; at `plane` the lines that go with them.
            unsafe {
                tile!("tileloadd tmm6, [{x} + {s}]"; x = plane);
                asm!(
                    "tileloadd tmm4, [{from} + {stride}]",
                    from = in(reg) from, stride = in(reg) stride,
                    out("tmm4") _,
                    options(nostack, preserves_flags, readonly),
                );
            }
            let step = Step { _tiles: tiles, from, stride };
            at += step_codes;
            if at == end {
                return step;
            }
            step.multiply_first();
            step.multiply_second();
        }
    }

    /// Copies the codes of a step as bytes; rows past the end keep what they had.
    #[inline(never)] // Inlined, it would keep its caller from being so.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn copy_step(&self, codes: &[u8], at: usize, step_codes: usize, copied: &mut Copied) {
        let bits = self.weight.bits;
        let bytes = at / bits.per_byte()..(at + step_codes) / bits.per_byte();
        let rows = codes.chunks_exact(self.weight.row_bytes());
        for (line, row) in copied.as_flattened_mut().iter_mut().zip(rows) {
            widen(bits, &row[bytes.clone()], line);
        }
    }

    /// Writes finished chains.
    fn finish(&self, outputs: &Range<usize>, y: &[__m512; PAIRS]) {
        for (at, output) in outputs.clone().enumerate() {
            // SAFETY: a vector is as many floats.
            let pair: [[f32; FEW_ROWS]; 2] = unsafe { std::mem::transmute(y[at / 2]) };
            for row in self.rows.clone() {
                let y = pair[at % 2][row];
                let y = self.bias.map_or(y, |bias| y + bias[output]);
                // SAFETY: no other task has these elements, and this one holds one at a time.
                unsafe { self.target.part(row, output, 1)[0] = y };
            }
        }
    }
}

/// Codes of a whole strip that are about to be multiplied, which it borrows: operands of the first
/// half are loaded.
struct Step<'a> {
    _tiles: &'a Tiles,
    from: *const u8,
    stride: usize,
}

impl Step<'_> {
    /// Multiplies the first tile of outputs and loads the second.
    #[inline(always)]
    fn multiply_first(&self) {
        let second = self.from.wrapping_add(TILE_ROWS * self.stride);
        // SAFETY: there are tile registers, and `begin_group` made this of a whole strip.
        unsafe {
            asm!(
                "tdpbusd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{from} + {stride}]",
                from = in(reg) second, stride = in(reg) self.stride,
                out("tmm0") _, out("tmm5") _,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    /// Multiplies the second tile of outputs.
    #[inline(always)]
    fn multiply_second(&self) {
        // SAFETY: there are tile registers.
        unsafe {
            asm!("tdpbusd tmm1, tmm5, tmm6", out("tmm1") _, options(nostack, preserves_flags));
        }
    }
}

/// Stores the sums of the first tile of outputs.
#[inline(always)]
fn store_first(_: &Tiles, dots: &mut Dots) {
    // SAFETY: there are tile registers, and room for a tile.
    unsafe { tile!("tilestored [{d} + {s}], tmm0"; d = dots[0].as_mut_ptr()) }
}

/// Stores the sums of the second tile of outputs.
#[inline(always)]
fn store_second(_: &Tiles, dots: &mut Dots) {
    // SAFETY: there are tile registers, and room for a tile.
    unsafe { tile!("tilestored [{d} + {s}], tmm1"; d = dots[1].as_mut_ptr()) }
}

/// What continues the chains of a strip by one group.
struct Link<'a> {
    params: &'a [Params<1>; STRIP],
    x: &'a [Line; 2],
    dots: &'a Dots,
    /// What to ask memory for meanwhile.
    ahead: *const u8,
}

impl Link<'_> {
    /// Takes group `group` of the parameters for the pairs of outputs `FROM..TO`; asks memory for
    /// their share of so many lines.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn extend<const LINES: usize, const FROM: usize, const TO: usize>(
        &self,
        group: usize,
        y: &mut [__m512; PAIRS],
    ) {
        macro_rules! pairs {
            ($($pair:literal)+) => {
                $(if (FROM..TO).contains(&$pair) {
                    self.pair::<$pair, LINES>(group, &mut y[$pair]);
                })+
            };
        }
        pairs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }

    /// The same for one pair of outputs and its share of the lines.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn pair<const PAIR: usize, const LINES: usize>(&self, group: usize, y: &mut __m512) {
        for line in PAIR * LINES / PAIRS..(PAIR + 1) * LINES / PAIRS {
            prefetch(self.ahead.wrapping_add(line * size_of::<Line>()));
        }
        let (tile, first) = (2 * PAIR / TILE_ROWS, 2 * PAIR % TILE_ROWS);
        let [scale, sum] = [&self.x[0], &self.x[1]].map(|line| _mm512_castsi512_ps(line.read()));
        let [[scales], [biases]] = self.params[tile].group(group);
        let [scales, biases] = [scales, biases].map(|line| _mm512_castsi512_ps(line.read()));
        let dots = &self.dots[tile];
        let (even, odd) = (dots[first].read(), dots[first + 1].read());
        let high = _mm512_shuffle_i64x2::<0x44>(even, odd);
        let low = _mm512_shuffle_i64x2::<0xee>(even, odd);
        let dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
        let lanes = _mm512_set1_epi32(first as i32);
        let lanes = _mm512_mask_set1_epi32(lanes, 0xff00, first as i32 + 1);
        let weight_scale = _mm512_mul_ps(_mm512_permutexvar_ps(lanes, scales), scale);
        let chain = _mm512_fmadd_ps(weight_scale, _mm512_cvtepi32_ps(dot), *y);
        *y = _mm512_fmadd_ps(_mm512_permutexvar_ps(lanes, biases), sum, chain);
    }
}
