//! The GEMV, and the GEMM of few rows: weights are multiplied in place, as they lie in memory, which sets the pace.
//!
//! A vector of codes belongs to one output, so its accumulator has to be summed across lanes. That is
//! done for 16 outputs at a time, by transposing and adding, and gives vectors of 16 outputs.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::activations::Activations;
use super::super::call::Call;
use super::task::{CHUNK, PARAM_GROUPS, Params, Task, own_ahead, padded_rows};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, Bits, MAX_GROUP};
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE, prefetch, prefetch_near};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::{Avx512Vnni, Line};
use crate::device::cpu::pool::Tasks;

/// Inputs that are taken at once: whole groups of every size, and chunks of every width of code.
const SPAN: usize = MAX_GROUP;

/// How far ahead in each row of codes a line is prefetched into the first-level cache; one line, two
/// and four are alike. Took 8 % off the time of one row beside 4-bit codes.
const NEAR: usize = 2 * CHUNK;

/// Rows beside which transposing accumulators costs less than transposing weights.
pub(crate) const FEW_ROWS: usize = 3;

/// The tasks of a GEMV, or of a GEMM of at most [`FEW_ROWS`] rows.
pub(crate) fn matmul<'a>(
    proof: Avx512Vnni,
    call: Call<'a>,
    x: &'a Activations,
    y: Target<'a>,
) -> Tasks<'a> {
    let Call { weight, bias, .. } = call;
    call.by_outputs(call.share(LANES), y, move |outputs, target| {
        let _: Avx512Vnni = proof;
        let rows = 0..call.rows();
        let task = Task { weight, bias, x, rows, outputs, target };
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe {
            match (weight.bits, weight.acts) {
                (Bits::Four, Acts::Words) => task.direct::<4, 1, 2>(),
                (Bits::Four, Acts::Bytes) => task.direct::<4, 1, 1>(),
                (Bits::Six | Bits::Eight, Acts::Words) => task.direct::<8, 2, 2>(),
                (Bits::Six | Bits::Eight, Acts::Bytes) => task.direct::<8, 2, 1>(),
            }
        }
    })
}

/// Where a span of the codes of 16 outputs is.
struct Span {
    /// The codes of the first output.
    from: *const u8,
    /// Bytes from those of one output to those of the next.
    stride: usize,
    /// The codes to prefetch meanwhile.
    ahead: Ahead,
    /// The groups that the codes belong to; what is past them is zero.
    groups: Range<usize>,
}

/// As many bytes as a span has, to prefetch: parts of [`CHUNK`] bytes.
#[derive(Clone, Copy)]
struct Ahead {
    from: *const u8,
    /// Whether the parts that are prefetched beside one output and the next lie side by side, else as far apart
    /// as the outputs do.
    in_order: bool,
}

impl Ahead {
    /// Ahead of the bytes at `at` of 16 outputs, `codes` being what is left from the first of them on.
    #[inline(always)]
    fn of(codes: &[u8], row_bytes: usize, at: usize) -> Ahead {
        if LANES * row_bytes <= AHEAD {
            // In the order that rows lie in, which memory is fastest in and this kernel's
            // own is not: so at least as far ahead as the next rows begin.
            let from = codes.as_ptr().wrapping_add(LANES * at + AHEAD);
            return Ahead { from, in_order: true };
        }
        // The next rows begin too far ahead: in the kernel's own order. Beside 8 KiB of each output, prefetching as far
        // ahead as they begin made the product 9 % slower than prefetching what follows in each output.
        Ahead { from: codes.as_ptr().wrapping_add(own_ahead(at, row_bytes)), in_order: false }
    }

    /// Where the bytes begin that are prefetched beside a chunk.
    #[inline(always)]
    fn beside(self, chunk: usize) -> *const u8 {
        let part = if self.in_order { LANES * CHUNK } else { CHUNK };
        self.from.wrapping_add(chunk * part)
    }
}

impl Task<'_> {
    /// All of the task; `BITS` are those of the weight, `CHUNKS` what a span has of them, `PLANES` the bytes of an
    /// activation.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn direct<const BITS: usize, const CHUNKS: usize, const PLANES: usize>(&self) {
        let mut params = Params::<1>::ZERO;
        let row_bytes = self.weight.row_bytes();
        let span = SPAN / self.weight.group; // Groups in a span.
        for first_output in self.outputs.clone().step_by(LANES) {
            let outputs = first_output..(first_output + LANES).min(self.outputs.end);
            let codes = &self.weight.codes[first_output * row_bytes..];
            let mut y = [_mm512_setzero_ps(); FEW_ROWS];
            for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let held = first..(first + PARAM_GROUPS).min(self.weight.groups());
                self.fill_params(&outputs, &held, false, &mut params);
                for first in held.clone().step_by(span) {
                    let groups = first..(first + span).min(held.end);
                    self.prefetch_params(first_output, &groups);
                    let at = first * self.group_bytes();
                    let ahead = Ahead::of(codes, row_bytes, at);
                    let mut padded = MaybeUninit::<[[Line; CHUNKS]; LANES]>::uninit();
                    let whole =
                        codes.len() >= LANES * row_bytes && at + CHUNKS * CHUNK <= row_bytes;
                    let (from, stride) = match whole {
                        true => (codes[at..].as_ptr(), row_bytes),
                        false => {
                            let padded = padded.write(padded_rows(codes, row_bytes, at));
                            (padded.as_ptr().cast(), CHUNKS * CHUNK)
                        }
                    };
                    let at = Span { from, stride, ahead, groups };
                    // SAFETY: whole spans of whole rows by the condition, or a copy of that size.
                    unsafe { self.span::<BITS, CHUNKS, PLANES>(&at, &params, &mut y) };
                }
            }
            for (row, y) in self.rows.clone().zip(y) {
                self.write_target(row, &outputs, y);
            }
        }
    }

    /// Prefetches scales and biases beside some of the groups of the 16 outputs from `first` on: from memory
    /// those that 32 outputs behind need, and into the first-level cache those that 16 outputs behind need. A line at a
    /// time, in their order, which took 2 % off the time of a row: they are few bytes, but each
    /// wait for them is one for codes, too.
    #[inline(always)]
    fn prefetch_params(&self, first: usize, groups: &Range<usize>) {
        let block = LANES * self.weight.param_bytes();
        let share = |group: usize| group * LANES * self.weight.params.bytes();
        let lines = share(groups.start) / CACHE_LINE..share(groups.end).div_ceil(CACHE_LINE);
        for line in lines {
            let next = first * self.weight.param_bytes() + block + line * CACHE_LINE;
            for params in [self.weight.scales, self.weight.biases] {
                prefetch(params.as_ptr().wrapping_add(next + block));
                prefetch_near(params.as_ptr().wrapping_add(next));
            }
        }
    }

    /// The micro-kernel: adds the products of a span to the accumulators `y` of 16 outputs, a vector for each row.
    ///
    /// # Safety
    /// The codes of the span are where it says.
    #[allow(
        clippy::needless_range_loop,
        reason = "calls of iterators' adapters stay calls here: a fifth of the time beside 4-bit codes"
    )]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    unsafe fn span<const BITS: usize, const CHUNKS: usize, const PLANES: usize>(
        &self,
        span: &Span,
        params: &Params<1>,
        y: &mut [__m512; FEW_ROWS],
    ) {
        let Span { from, stride, ahead, ref groups } = *span;
        let per_group = 4 * CHUNKS * self.weight.group / SPAN;
        for row in 0..self.rows.len() {
            let (index, first_row) = (self.rows.start + row, row == 0);
            let x = self.x.planes(index);
            let mut quarters = [[_mm512_setzero_si512(); 4]; CHUNKS];
            for chunk in 0..CHUNKS {
                let at = groups.start * self.weight.group + chunk * (SPAN / CHUNKS);
                let at = at..at + SPAN / CHUNKS;
                let x = [&x.high[at.clone()], &x.low[at]];
                let from = from.wrapping_add(chunk * CHUNK);
                let beside = ahead.beside(chunk);
                // Codes are prefetched once, between the products of the first row.
                // SAFETY: the caller's promise.
                quarters[chunk] = unsafe {
                    match (first_row, ahead.in_order) {
                        (true, true) => {
                            chunk_sums::<BITS, PLANES, true, true>(from, stride, x, beside)
                        }
                        (true, false) => {
                            chunk_sums::<BITS, PLANES, true, false>(from, stride, x, beside)
                        }
                        (false, _) => {
                            chunk_sums::<BITS, PLANES, false, false>(from, stride, x, beside)
                        }
                    }
                };
            }
            let quarters = quarters.as_flattened();
            let (scales, sums) = (self.x.scales(index), self.x.sums(index));
            for group in 0..groups.len() {
                let mut dot = quarters[group * per_group];
                for quarter in 1..per_group {
                    dot = _mm512_add_epi32(dot, quarters[group * per_group + quarter]);
                }
                let group = groups.start + group;
                let scale = _mm512_set1_ps(scales[group]);
                let sum = _mm512_set1_ps(sums[group]);
                y[row] = params.chain((group % PARAM_GROUPS, 0), (scale, sum), dot, y[row]);
            }
        }
    }
}

/// Prefetches beside one output of four: from memory the part `$in_order` bytes from `ahead` on, or at `$own`, and into
/// the first-level cache what follows `$near` by [`NEAR`]. Written out, with addresses that the instructions compute
/// themselves: compilers compute each before, which takes the places of products. A tenth of the time beside 4-bit
/// codes, a twentieth beside 8-bit ones.
macro_rules! ask {
    ($order:expr, $in_order:literal, $own:literal, $near:literal; $($name:ident = $value:expr),+) => {
        match $order {
            true => ask!(@ concat!("{ahead} + ", $in_order), $near; $($name = $value),+),
            false => ask!(@ $own, $near; $($name = $value),+),
        }
    };
    (@ $far:expr, $near:literal; $($name:ident = $value:expr),+) => {
        asm!(
            concat!("prefetcht1 [", $far, "]"),
            concat!("prefetcht0 [", $near, " + 128]"),
            "/* {ahead} {from} {stride} {thrice} */", // Some requests need not all of them.
            $($name = in(reg) $value,)+
            options(nostack, preserves_flags, readonly),
        )
    };
}

/// Integer dot products of each quarter of [`CHUNK`] bytes of codes of each of 16 outputs with the codes of
/// activations, whose upper and lower bytes are `high` and `low`: a vector of outputs per quarter. With `ASK`,
/// prefetches as many bytes from `ahead` on meanwhile, see [`Ahead`], and into the first-level cache those [`NEAR`]
/// bytes behind the ones that it multiplies.
///
/// # Safety
/// The codes lie at `from` and after it, `stride` bytes apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline(never)] // Inlined, its requests to memory come many at a time: a fifth slower beside 8-bit codes.
unsafe fn chunk_sums<
    const BITS: usize,
    const PLANES: usize,
    const ASK: bool,
    const IN_ORDER: bool,
>(
    mut from: *const u8,
    stride: usize,
    [high, low]: [&[i8]; 2],
    mut ahead: *const u8,
) -> [__m512i; 4] {
    const { assert!(NEAR == 128 && CHUNK == 64, "as written out") };
    let (high, low) = (operands::<BITS>(high), operands::<BITS>(low));
    let thrice = 3 * stride;
    let mut quads = [_mm512_setzero_si512(); 4];
    for to in &mut quads {
        macro_rules! sums {
            ($at:expr; $in_order:literal, $own:literal, $near:literal) => {{
                if ASK {
                    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
                    unsafe {
                        ask!(IN_ORDER, $in_order, $own, $near;
                            ahead = ahead, from = from, stride = stride, thrice = thrice);
                    }
                }
                // SAFETY: the caller's promise.
                let codes = unsafe { _mm512_loadu_si512(from.wrapping_add($at).cast()) };
                output_sums::<BITS, PLANES>(codes, high, low)
            }};
        }
        *to = quarter_sums([
            sums!(0; "0", "{ahead}", "{from}"),
            sums!(stride; "64", "{ahead} + {stride}", "{from} + {stride}"),
            sums!(2 * stride; "128", "{ahead} + 2 * {stride}", "{from} + 2 * {stride}"),
            sums!(thrice; "192", "{ahead} + {thrice}", "{from} + {thrice}"),
        ]);
        from = from.wrapping_add(4 * stride);
        ahead = ahead.wrapping_add(4 * if IN_ORDER { CHUNK } else { stride });
    }
    // Quarter `q` of `quads[b]` has outputs `4b..4b + 4`: 4 × 4 quarters change places.
    let low_a = _mm512_shuffle_i32x4::<0x44>(quads[0], quads[1]);
    let high_a = _mm512_shuffle_i32x4::<0xee>(quads[0], quads[1]);
    let low_b = _mm512_shuffle_i32x4::<0x44>(quads[2], quads[3]);
    let high_b = _mm512_shuffle_i32x4::<0xee>(quads[2], quads[3]);
    [
        _mm512_shuffle_i32x4::<0x88>(low_a, low_b),
        _mm512_shuffle_i32x4::<0xdd>(low_a, low_b),
        _mm512_shuffle_i32x4::<0x88>(high_a, high_b),
        _mm512_shuffle_i32x4::<0xdd>(high_a, high_b),
    ]
}

/// Products of [`CHUNK`] bytes of codes of one output with the [`operands`] of both planes, or of the lower one alone:
/// a sum for every four bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn output_sums<const BITS: usize, const PLANES: usize>(
    codes: __m512i,
    high: (__m512i, __m512i),
    low: (__m512i, __m512i),
) -> __m512i {
    let mut sum = _mm512_setzero_si512();
    if BITS == 4 {
        let half = _mm512_set1_epi8(0xf);
        let even = _mm512_and_si512(codes, half);
        let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), half);
        if PLANES == 2 {
            sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, high.0), odd, high.1);
            sum = _mm512_slli_epi32::<8>(sum);
        }
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, low.0), odd, low.1)
    } else {
        if PLANES == 2 {
            sum = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(sum, codes, high.0));
        }
        _mm512_dpbusd_epi32(sum, codes, low.0)
    }
}

/// What the bytes of a chunk of codes are multiplied with: for half bytes the activations of the
/// low halves and those of the high ones, else the first of both.
#[target_feature(enable = "avx512f")]
#[inline]
fn operands<const BITS: usize>(x: &[i8]) -> (__m512i, __m512i) {
    let x: &[[i8; CHUNK]] = x.as_chunks().0;
    // SAFETY: both read whole arrays.
    let (first, last) = unsafe {
        let last = x[x.len() - 1].as_ptr();
        (_mm512_loadu_si512(x[0].as_ptr().cast()), _mm512_loadu_si512(last.cast()))
    };
    if BITS == 4 {
        // 16 even ones, 16 odd ones, and so on.
        let even = _mm512_shuffle_i32x4::<0x88>(first, last);
        (even, _mm512_shuffle_i32x4::<0xdd>(first, last))
    } else {
        (first, last)
    }
}

/// Sums of the four lanes of every quarter: lane `i` of a quarter is that of `sums[i]`.
#[target_feature(enable = "avx512f")]
#[inline]
fn quarter_sums(sums: [__m512i; 4]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pair(sums[0], sums[1]), pair(sums[2], sums[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}
