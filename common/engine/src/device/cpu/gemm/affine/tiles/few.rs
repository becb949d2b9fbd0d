//! The integer GEMM of few rows with tile registers: both planes of eight rows are the 16 columns of one tile, and
//! codes of bytes are multiplied in place, as they lie in memory, which sets the pace.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use cake_checkpoint::FloatType;

use super::super::activations::Activations;
use super::super::call::Call;
use super::super::vnni::task::{PARAM_GROUPS, Task, own_ahead};
use super::shape::{STEP, Tile, widen};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Bits, MAX_GROUP, MIN_GROUP};
use crate::device::cpu::isa::prefetch::CACHE_LINE;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::tiles::{TILE_ROWS, Tiles, tile, transpose_into};
use crate::device::cpu::isa::x86::{Amx, Line};
use crate::device::cpu::pool::Tasks;

/// Most rows: half the columns of a tile.
pub(crate) const FEW_ROWS: usize = TILE_ROWS / 2;
/// Outputs computed together, a span of each at a time, which is two lines of codes of a byte, and prefetched in the
/// same order. With one line of twice as many, or prefetched in the order that they lie in, memory stood still while
/// products were computed: a fifth more time.
const OUTPUTS: usize = TILE_ROWS;
/// Pairs of outputs: a vector has the rows of two.
const PAIRS: usize = OUTPUTS / 2;
/// Inputs that are taken at once: whole groups of every size.
const SPAN: usize = MAX_GROUP;
/// Steps of a span.
const STEPS: usize = SPAN / STEP;
/// Most groups of a span.
const MOST_GROUPS: usize = SPAN / MIN_GROUP;

/// At most [`FEW_ROWS`] rows of activations. Rows and inputs past the end are zero.
pub(crate) struct FewPacked {
    /// For each step of whole spans a tile, a line of which has four codes of every row: the upper plane, then
    /// the lower one.
    planes: Vec<Tile>,
    /// For each group the scales of the rows, twice, and the sums, twice.
    params: Vec<[Line; 2]>,
}

impl FewPacked {
    /// Packs the activations of `call`, which `x` has as planes.
    pub(crate) fn new(proof: Amx, call: &Call<'_>, x: &Activations) -> FewPacked {
        let steps = call.weight.inputs.div_ceil(SPAN) * STEPS;
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

/// The tasks of a GEMM of at most [`FEW_ROWS`] rows.
pub(crate) fn matmul<'a>(
    proof: Amx,
    call: Call<'a>,
    (x, packed): (&'a Activations, &'a FewPacked),
    y: Target<'a>,
) -> Tasks<'a> {
    let Call { weight, bias, .. } = call;
    let rows = call.rows();
    assert!(rows <= FEW_ROWS, "few rows");
    call.by_outputs(call.share(OUTPUTS), y, move |outputs, target| {
        let task = Task { weight, bias, x, rows: 0..rows, outputs, target };
        let tiles = Tiles::new(proof, weight.group.min(STEP));
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe {
            match (SPAN / weight.group, weight.bits) {
                (1, Bits::Six | Bits::Eight) => task.run_few::<1, 2>(&tiles, packed),
                (2, Bits::Six | Bits::Eight) => task.run_few::<2, 2>(&tiles, packed),
                (4, Bits::Six | Bits::Eight) => task.run_few::<4, 2>(&tiles, packed),
                (1, Bits::Four) => task.run_few::<1, 1>(&tiles, packed),
                (2, Bits::Four) => task.run_few::<2, 1>(&tiles, packed),
                (4, Bits::Four) => task.run_few::<4, 1>(&tiles, packed),
                (groups, _) => unreachable!("{groups} groups in a span"),
            }
        };
    })
}

/// Codes of a span of 16 outputs as bytes, where they do not lie so.
type Copied = [Tile; STEPS];

/// Integer accumulators of the groups of a span, from tile registers: a line for each output.
type Dots = [Tile; MOST_GROUPS];

impl Task<'_> {
    /// All of the task; a span has so many `GROUPS`, and its codes are so many `LINES` of each output.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn run_few<const GROUPS: usize, const LINES: usize>(&self, tiles: &Tiles, packed: &FewPacked) {
        assert_eq!(tiles.row_bytes(), (self.weight.group.min(STEP), size_of::<Line>()), "tiles");
        let mut params = [const { RowParams::ZERO }; 2];
        let (mut copied, mut dots) =
            ([[Line::ZERO; TILE_ROWS]; STEPS], [[[Line::ZERO; TILE_ROWS]; MOST_GROUPS]; 2]);
        let row_bytes = self.weight.row_bytes();
        let groups = self.weight.groups();
        let spans = groups.div_ceil(GROUPS);
        let filled = PARAM_GROUPS / GROUPS; // Spans.
        for first in self.outputs.clone().step_by(OUTPUTS) {
            let outputs = first..(first + OUTPUTS).min(self.outputs.end);
            let codes = &self.weight.codes[first * row_bytes..];
            let mut y = [_mm512_setzero_ps(); PAIRS];
            // The products of a span are on their way while the accumulators `y` take those before, a part of one after
            // a part of the other: a processor looks only so far ahead.
            for span in 0..=spans {
                if span < spans && span % filled == 0 {
                    let held = span * GROUPS..(span * GROUPS + PARAM_GROUPS).min(groups);
                    self.fill_rows(first, &held, &mut params[span / filled % 2]);
                }
                let [even, odd] = &mut dots;
                let (to, dots) = if span % 2 == 0 { (even, odd) } else { (odd, even) };
                let last = span.max(1) - 1;
                let link = Link {
                    params: &params[last / filled % 2],
                    first: last % filled * GROUPS,
                    x: &packed.params[last * GROUPS..((last + 1) * GROUPS).min(groups)],
                    dots,
                };
                macro_rules! extend {
                    ($from:literal .. $to:literal) => {
                        if span > 0 {
                            link.extend::<GROUPS, $from, $to>(&mut y);
                        }
                    };
                }
                if span == spans {
                    extend!(0..8);
                    break;
                }
                let at = span * SPAN / self.weight.bits.per_byte();
                let [ahead, near] = [own_ahead(at, row_bytes), at + LINES * CACHE_LINE]
                    .map(|at| codes.as_ptr().wrapping_add(at));
                let codes = self.locate(codes, span, &mut copied);
                let x = packed.planes[span * STEPS..][..STEPS].as_ptr();
                macro_rules! ask {
                    ($quarter:literal) => {
                        let first = 4 * $quarter * row_bytes;
                        ask::<LINES>(
                            ahead.wrapping_add(first),
                            near.wrapping_add(first),
                            row_bytes,
                        );
                    };
                }
                // SAFETY: at `codes` are those of a whole span, and at `x` what goes with them.
                unsafe {
                    multiply::<GROUPS, 0>(tiles, &codes, x.cast());
                    ask!(0);
                    extend!(0..2);
                    multiply::<GROUPS, 1>(tiles, &codes, x.cast());
                    ask!(1);
                    extend!(2..4);
                    if GROUPS == 4 {
                        multiply::<GROUPS, 2>(tiles, &codes, x.cast());
                        multiply::<GROUPS, 3>(tiles, &codes, x.cast());
                    }
                    store::<0>(tiles, to);
                    ask!(2);
                    extend!(4..6);
                    if GROUPS > 1 {
                        store::<1>(tiles, to);
                    }
                    ask!(3);
                    extend!(6..8);
                    if GROUPS == 4 {
                        store::<2>(tiles, to);
                        store::<3>(tiles, to);
                    }
                }
            }
            self.finish(&outputs, &y);
        }
    }

    /// Widens scales and biases of `groups`, at most [`PARAM_GROUPS`], of the 16 outputs from `first` on; those
    /// past the end are of no meaning. Prefetches those of the outputs behind.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    fn fill_rows(&self, first: usize, groups: &Range<usize>, params: &mut RowParams) {
        let mut copies = MaybeUninit::uninit();
        let rows = self.param_rows(first, groups, true, &mut copies);
        let float = self.weight.params;
        for (lane, (scales, biases)) in params.scales.iter_mut().zip(&mut params.biases).enumerate()
        {
            let at = lane * rows.stride;
            // SAFETY: `rows` has 16 values of each of 16 outputs.
            unsafe {
                scales.write(widen_params(float, rows.scales.wrapping_add(at)));
                biases.write(widen_params(float, rows.biases.wrapping_add(at)));
            }
        }
    }

    /// Where the codes of a span are as bytes, `codes` being what is left from the first output on: there, or in
    /// `copied`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn locate(&self, codes: &[u8], span: usize, copied: &mut Copied) -> Codes {
        let row_bytes = self.weight.row_bytes();
        let bits = self.weight.bits;
        let at = span * SPAN / bits.per_byte();
        let whole = codes.len() >= OUTPUTS * row_bytes && at + SPAN / bits.per_byte() <= row_bytes;
        match (whole, bits) {
            (true, Bits::Six | Bits::Eight) => {
                return Codes { from: codes[at..].as_ptr(), stride: row_bytes, step: STEP };
            }
            // SAFETY: spans of 16 rows are there.
            (true, Bits::Four) => unsafe { widen_span(codes[at..].as_ptr(), row_bytes, copied) },
            (false, _) => self.copy_span(codes, span * SPAN, copied),
        }
        let from = copied.as_ptr().cast();
        Codes { from, stride: size_of::<Line>(), step: size_of::<Tile>() }
    }

    /// Copies the codes of a span as bytes; outputs and inputs past the end keep what they had.
    #[inline(never)] // Inlined, it would keep its caller from being so.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn copy_span(&self, codes: &[u8], at: usize, copied: &mut Copied) {
        let bits = self.weight.bits;
        for (step, tile) in copied.iter_mut().enumerate() {
            let at = (at + step * STEP) / bits.per_byte();
            let rows = codes.chunks_exact(self.weight.row_bytes());
            for (line, row) in tile.iter_mut().zip(rows) {
                let bytes = row.get(at..).unwrap_or(&[]);
                widen(bits, &bytes[..bytes.len().min(STEP / bits.per_byte())], line);
            }
        }
    }

    /// Writes finished accumulators, with the layer's bias.
    fn finish(&self, outputs: &Range<usize>, y: &[__m512; PAIRS]) {
        for (at, output) in outputs.clone().enumerate() {
            // SAFETY: a vector is as many floats.
            let pair: [[f32; FEW_ROWS]; 2] = unsafe { std::mem::transmute(y[at / 2]) };
            for row in self.rows.clone() {
                let y = pair[at % 2][row];
                let y = self.bias.map_or(y, |bias| y + bias[output]);
                // SAFETY: no other task has these elements, and this one holds one at a time.
                unsafe { self.target.part(row, output, 1)[0].write(y) };
            }
        }
    }
}

/// Scales and biases of some groups of 16 outputs: a line of groups for each output.
struct RowParams {
    scales: Tile,
    biases: Tile,
}

impl RowParams {
    const ZERO: RowParams =
        RowParams { scales: [Line::ZERO; TILE_ROWS], biases: [Line::ZERO; TILE_ROWS] };
}

/// 16 values of type `float` as f32.
///
/// # Safety
/// They can be read at `from`.
#[target_feature(enable = "avx512f,avx512vl,f16c")]
#[inline]
unsafe fn widen_params(float: FloatType, from: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let half = || _mm256_loadu_si256(from.cast());
        match float {
            FloatType::F32 => _mm512_loadu_si512(from.cast()),
            FloatType::F16 => _mm512_castps_si512(_mm512_cvtph_ps(half())),
            FloatType::BF16 => _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half())),
        }
    }
}

/// Codes of a span of 16 outputs as bytes.
struct Codes {
    from: *const u8,
    /// Bytes from an output to the next, and from a step to the next.
    stride: usize,
    step: usize,
}

/// Unpacks the half bytes of a span of 16 outputs to bytes, in the order that activations beside them have.
///
/// # Safety
/// They can be read at `from` and after it, `stride` bytes apart.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn widen_span(from: *const u8, stride: usize, copied: &mut Copied) {
    let half = _mm512_set1_epi8(0xf);
    // 16 bytes are 32 codes: 16 low halves, then 16 high ones.
    let orders = [
        _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
        _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15),
    ];
    for output in 0..OUTPUTS {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm512_loadu_si512(from.wrapping_add(output * stride).cast()) };
        let low = _mm512_and_si512(codes, half);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), half);
        for (tile, order) in copied.iter_mut().zip(orders) {
            tile[output].write(_mm512_permutex2var_epi64(low, order, high));
        }
    }
}

/// Multiplies part `PART` of a span of so many `GROUPS` with what goes with it of the activations, whose tiles are
/// at `x`: a step, or the half of one that is a group. The accumulators of group `g` are tile register `g`.
///
/// # Safety
/// The codes and the tiles are there.
#[inline(always)]
unsafe fn multiply<const GROUPS: usize, const PART: usize>(_: &Tiles, codes: &Codes, x: *const u8) {
    let at = PART * if GROUPS == 4 { MIN_GROUP } else { STEP };
    let from = codes.from.wrapping_add(at / STEP * codes.step + at % STEP);
    let x = x.wrapping_add(at / STEP * size_of::<Tile>() + at % STEP / 4 * size_of::<Line>());
    macro_rules! product {
        ($sum:literal = $weights:literal * $x:literal) => {
            product!($sum += $weights * $x; concat!("tilezero ", $sum),)
        };
        ($sum:literal += $weights:literal * $x:literal; $($first:expr,)?) => {
            asm!(
                $($first,)?
                concat!("tileloadd ", $x, ", [{x} + {line}]"),
                concat!("tileloadd ", $weights, ", [{from} + {stride}]"),
                concat!("tdpbusd ", $sum, ", ", $weights, ", ", $x),
                x = in(reg) x, line = in(reg) size_of::<Line>(),
                from = in(reg) from, stride = in(reg) codes.stride,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly),
            )
        };
    }
    // SAFETY: there are tile registers for such codes; the caller's promise.
    unsafe {
        match (GROUPS, PART) {
            (_, 0) => product!("tmm0" = "tmm4" * "tmm6"),
            (1, _) => product!("tmm0" += "tmm5" * "tmm7";),
            (_, 1) => product!("tmm1" = "tmm5" * "tmm7"),
            (_, 2) => product!("tmm2" = "tmm4" * "tmm6"),
            _ => product!("tmm3" = "tmm5" * "tmm7"),
        }
    }
}

/// Stores the accumulators of group `GROUP`.
#[inline(always)]
fn store<const GROUP: usize>(_: &Tiles, dots: &mut Dots) {
    let to = dots[GROUP].as_mut_ptr();
    // SAFETY: there are tile registers, and room for a tile.
    unsafe {
        match GROUP {
            0 => tile!("tilestored [{to} + {s}], tmm0"; to = to),
            1 => tile!("tilestored [{to} + {s}], tmm1"; to = to),
            2 => tile!("tilestored [{to} + {s}], tmm2"; to = to),
            _ => tile!("tilestored [{to} + {s}], tmm3"; to = to),
        }
    }
}

/// Prefetches from memory `LINES` lines, one or two, of each of four outputs, the first at `from`, and into the
/// first-level cache as many at `near`. Written out, with addresses that the instructions compute themselves.
#[inline(always)]
fn ask<const LINES: usize>(from: *const u8, near: *const u8, stride: usize) {
    const { assert!(CACHE_LINE == 64 && LINES <= 2, "as written out") };
    macro_rules! four {
        ($line:literal) => {
            asm!(
                concat!("prefetcht1 [{from} + ", $line, "]"),
                concat!("prefetcht1 [{from} + {stride} + ", $line, "]"),
                concat!("prefetcht1 [{from} + 2 * {stride} + ", $line, "]"),
                concat!("prefetcht1 [{from} + {thrice} + ", $line, "]"),
                concat!("prefetcht0 [{near} + ", $line, "]"),
                concat!("prefetcht0 [{near} + {stride} + ", $line, "]"),
                concat!("prefetcht0 [{near} + 2 * {stride} + ", $line, "]"),
                concat!("prefetcht0 [{near} + {thrice} + ", $line, "]"),
                from = in(reg) from, near = in(reg) near, stride = in(reg) stride, thrice = in(reg) 3 * stride,
                options(nostack, preserves_flags, readonly),
            )
        };
    }
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        four!("0");
        if LINES == 2 {
            four!("64");
        }
    }
}

/// The products of a span, and what scales them on their way to the f32 accumulators of 16 outputs.
struct Link<'a> {
    /// The parameters of some groups, and which of them is the first of the span.
    params: &'a RowParams,
    first: usize,
    /// Of each group of the span.
    x: &'a [[Line; 2]],
    dots: &'a Dots,
}

impl Link<'_> {
    /// Adds the groups of the span, `GROUPS` at most, to the accumulators of the pairs of outputs `FROM..TO`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn extend<const GROUPS: usize, const FROM: usize, const TO: usize>(
        &self,
        y: &mut [__m512; PAIRS],
    ) {
        macro_rules! pairs {
            ($group:literal; $($pair:literal)+) => {
                if $group < GROUPS && $group < self.x.len() {
                    $(if (FROM..TO).contains(&$pair) {
                        self.pair::<$group, $pair>(&mut y[$pair]);
                    })+
                }
            };
        }
        pairs!(0; 0 1 2 3 4 5 6 7);
        pairs!(1; 0 1 2 3 4 5 6 7);
        pairs!(2; 0 1 2 3 4 5 6 7);
        pairs!(3; 0 1 2 3 4 5 6 7);
    }

    /// Adds a group to the accumulators of one pair of outputs.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn pair<const GROUP: usize, const PAIR: usize>(&self, y: &mut __m512) {
        // The group of the even output, and that of the odd one.
        let lanes = _mm512_set1_epi32((self.first + GROUP) as i32);
        let lanes = _mm512_mask_add_epi32(lanes, 0xff00, lanes, _mm512_set1_epi32(LANES as i32));
        let [scale, sum] = self.x[GROUP].each_ref().map(|line| _mm512_castsi512_ps(line.read()));
        let RowParams { scales, biases } = self.params;
        let [scales, biases] = [scales, biases]
            .map(|rows| [rows[2 * PAIR], rows[2 * PAIR + 1]])
            .map(|pair| pair.map(|line| _mm512_castsi512_ps(line.read())))
            .map(|[even, odd]| _mm512_permutex2var_ps(even, lanes, odd));
        let dots = &self.dots[GROUP];
        let (even, odd) = (dots[2 * PAIR].read(), dots[2 * PAIR + 1].read());
        let high = _mm512_shuffle_i64x2::<0x44>(even, odd);
        let low = _mm512_shuffle_i64x2::<0xee>(even, odd);
        let dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
        let chain = _mm512_fmadd_ps(_mm512_mul_ps(scales, scale), _mm512_cvtepi32_ps(dot), *y);
        *y = _mm512_fmadd_ps(biases, sum, chain);
    }
}
