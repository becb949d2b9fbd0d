//! The GEMV, and the GEMM of few rows: weights are multiplied in place, as they lie in memory, which sets the pace.
//!
//! A vector of codes belongs to one output, so its accumulator has to be summed across lanes. That is
//! done for 16 outputs at a time, by transposing and adding, and gives vectors of 16 outputs.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::activations::Activations;
use super::super::call::Call;
use super::task::{CHUNK, PARAM_GROUPS, Params, Task, own_ahead, padded_rows};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, Bits, MAX_GROUP, SHORT_GROUP};
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

/// Some spans, whole ones, of the codes of 16 outputs, and what they are multiplied with.
struct Spans<'a> {
    /// The codes of the first output.
    from: *const u8,
    /// Bytes from those of one output to those of the next.
    stride: usize,
    /// The number of their first group.
    first: usize,
    /// The upper and the lower bytes of the activations.
    x: [&'a [[i8; SPAN]]; 2],
    /// Of each group, the scale of its activations, and that times the sum of their codes.
    scales: &'a [f32],
    sums: &'a [f32],
}

/// As many bytes as a span has, to prefetch: parts of [`CHUNK`] bytes, beside one output and the next.
struct Ahead;

impl Ahead {
    /// Whether these parts lie side by side, else as far apart as the outputs do.
    fn is_in_order(row_bytes: usize) -> bool {
        LANES * row_bytes <= AHEAD
    }

    /// Where they begin beside the bytes at `at` of 16 outputs, `codes` being what is left from the first of them on.
    #[inline(always)]
    fn of<const IN_ORDER: bool>(codes: &[u8], row_bytes: usize, at: usize) -> *const u8 {
        codes.as_ptr().wrapping_add(match IN_ORDER {
            // In the order that rows lie in, which memory is fastest in and this kernel's
            // own is not: so at least as far ahead as the next rows begin.
            true => LANES * at + AHEAD,
            // The next rows begin too far ahead: in the kernel's own order. Beside 8 KiB of each output, prefetching as far
            // ahead as they begin made the product 9 % slower than prefetching what follows in each output.
            false => own_ahead(at, row_bytes),
        })
    }
}

impl Task<'_> {
    /// All of the task; `BITS` are those of the weight, `CHUNKS` what a span has of them, `PLANES` the bytes of an
    /// activation.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn direct<const BITS: usize, const CHUNKS: usize, const PLANES: usize>(&self) {
        let mut params = Params::<1>::ZERO;
        let row_bytes = self.weight.row_bytes();
        let in_order = Ahead::is_in_order(row_bytes);
        let span = SPAN / self.weight.group; // Groups in a span.
        for first_output in self.outputs.clone().step_by(LANES) {
            let outputs = first_output..(first_output + LANES).min(self.outputs.end);
            let codes = &self.weight.codes[first_output * row_bytes..];
            let mut y = [_mm512_setzero_ps(); FEW_ROWS];
            for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let held = first..(first + PARAM_GROUPS).min(self.weight.groups());
                self.fill_params(&outputs, &held, false, &mut params);
                // Where there are 16 outputs, all spans but a last one that begins and does not end.
                let whole = match codes.len() >= LANES * row_bytes {
                    true => first..held.end - held.len() % span,
                    false => first..first,
                };
                for (row, y) in y.iter_mut().enumerate().take(self.rows.len()) {
                    let spans = self.spans(codes, row, whole.clone());
                    // Codes are prefetched once, between the products of the first row.
                    let add = match (row == 0, in_order) {
                        (true, true) => Self::add::<BITS, CHUNKS, PLANES, true, true>,
                        (true, false) => Self::add::<BITS, CHUNKS, PLANES, true, false>,
                        (false, _) => Self::add::<BITS, CHUNKS, PLANES, false, false>,
                    };
                    // SAFETY: `whole` are whole spans of 16 outputs, or none; their parameters are held.
                    unsafe { add(self, &spans, codes, first_output, &params, y) };
                    for start in (whole.end..held.end).step_by(span) {
                        let groups = start..(start + span).min(held.end);
                        if row == 0 && in_order {
                            self.ask_part(codes, first_output, &groups);
                        }
                        self.add_part::<BITS, CHUNKS, PLANES>(codes, row, groups, &params, y);
                    }
                }
            }
            for (row, y) in self.rows.clone().zip(y) {
                self.write_target(row, &outputs, y);
            }
        }
    }

    /// Whole spans of the outputs whose codes are `codes`, beside a row of the task.
    fn spans<'a>(&'a self, codes: &[u8], row: usize, groups: Range<usize>) -> Spans<'a> {
        let (row, group) = (self.rows.start + row, self.weight.group);
        let planes = self.x.planes(row);
        let inputs = groups.start * group..groups.end * group;
        let [high, low] = [&planes.high[inputs.clone()], &planes.low[inputs]];
        Spans {
            from: codes.as_ptr().wrapping_add(groups.start * self.group_bytes()),
            stride: self.weight.row_bytes(),
            first: groups.start,
            x: [high.as_chunks().0, low.as_chunks().0],
            scales: &self.x.scales(row)[groups.clone()],
            sums: &self.x.sums(row)[groups],
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

    /// Prefetches beside some groups that are no whole span what is prefetched beside whole ones, in the order that rows lie in.
    fn ask_part(&self, codes: &[u8], first_output: usize, groups: &Range<usize>) {
        self.prefetch_params(first_output, groups);
        let at = groups.start * self.group_bytes();
        let ahead = Ahead::of::<true>(codes, self.weight.row_bytes(), at);
        for byte in (0..LANES * groups.len() * self.group_bytes()).step_by(CACHE_LINE) {
            prefetch(ahead.wrapping_add(byte));
        }
    }

    /// The micro-kernel: adds the products of spans to `y`, a vector of 16 outputs, of which `first_output` is the first and
    /// `codes` begins with the codes. With `ASK`, prefetches what comes after them meanwhile.
    ///
    /// Sums of products stay in registers until they are scaled: with a call for each chunk, which stored them, 4-bit codes
    /// took a quarter longer in the cache and a tenth from memory (Zen 4).
    ///
    /// # Safety
    /// The spans are where they say, and `params` has their groups.
    #[inline(never)] // Called for a row of codes at a time, it is small enough to keep its numbers in registers.
    #[allow(
        clippy::needless_range_loop,
        reason = "calls of iterators' adapters stay calls here: twice the time"
    )]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    unsafe fn add<
        const BITS: usize,
        const CHUNKS: usize,
        const PLANES: usize,
        const ASK: bool,
        const IN_ORDER: bool,
    >(
        &self,
        spans: &Spans<'_>,
        codes: &[u8],
        first_output: usize,
        params: &Params<1>,
        y: &mut __m512,
    ) {
        let Spans { from, stride, first, x: [high, low], scales, sums } = *spans;
        let span = SPAN / self.weight.group;
        let mut sum = *y;
        for index in 0..high.len() {
            let first = first + index * span;
            let groups = first..first + span;
            let mut ahead = codes.as_ptr();
            if ASK {
                self.prefetch_params(first_output, &groups);
                ahead = Ahead::of::<IN_ORDER>(codes, stride, first * self.group_bytes());
            }
            let from = from.wrapping_add(index * CHUNKS * CHUNK);
            let mut quarters = [[_mm512_setzero_si512(); 4]; CHUNKS];
            for chunk in 0..CHUNKS {
                let at = chunk * (SPAN / CHUNKS);
                let from = from.wrapping_add(chunk * CHUNK);
                let ahead =
                    ahead.wrapping_add(chunk * if IN_ORDER { LANES * CHUNK } else { CHUNK });
                let x = [&high[index], &low[index]].map(|x| x[at..].as_ptr());
                // SAFETY: the caller's promise.
                quarters[chunk] =
                    unsafe { chunk_sums::<BITS, PLANES, ASK, IN_ORDER>(from, stride, x, ahead) };
            }
            let (scales, sums) = (&scales[index * span..][..span], &sums[index * span..][..span]);
            macro_rules! groups_of {
                ($quarters:literal) => {
                    for group in 0..4 * CHUNKS / $quarters {
                        let part = group * $quarters;
                        let mut dot = quarters[part / 4][part % 4];
                        for part in part + 1..part + $quarters {
                            dot = _mm512_add_epi32(dot, quarters[part / 4][part % 4]);
                        }
                        let scale = _mm512_set1_ps(scales[group]);
                        let codes = _mm512_set1_ps(sums[group]);
                        let place = ((first + group) % PARAM_GROUPS, 0);
                        sum = params.chain(place, (scale, codes), dot, sum);
                    }
                };
            }
            match 4 * CHUNKS / span {
                1 => groups_of!(1),
                2 => groups_of!(2),
                4 => groups_of!(4),
                8 => groups_of!(8),
                _ => unreachable!("groups of 16 codes of a byte, or of 32 and more"),
            }
        }
        *y = sum;
    }

    /// The same for some groups of a span, or of fewer outputs: a copy of them, with zeros behind.
    #[cold]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn add_part<const BITS: usize, const CHUNKS: usize, const PLANES: usize>(
        &self,
        codes: &[u8],
        row: usize,
        groups: Range<usize>,
        params: &Params<1>,
        y: &mut __m512,
    ) {
        let row = self.rows.start + row;
        let row_bytes = self.weight.row_bytes();
        let padded: [[Line; CHUNKS]; LANES] =
            padded_rows(codes, row_bytes, groups.start * self.group_bytes());
        let (mut high, mut low) = ([0; SPAN], [0; SPAN]);
        let (mut scales, mut sums) = ([0.0; SPAN / SHORT_GROUP], [0.0; SPAN / SHORT_GROUP]);
        let x = self.x.planes(row);
        let inputs = groups.start * self.weight.group..groups.end * self.weight.group;
        high[..inputs.len()].copy_from_slice(&x.high[inputs.clone()]);
        low[..inputs.len()].copy_from_slice(&x.low[inputs]);
        scales[..groups.len()].copy_from_slice(&self.x.scales(row)[groups.clone()]);
        sums[..groups.len()].copy_from_slice(&self.x.sums(row)[groups.clone()]);
        let spans = Spans {
            from: padded.as_ptr().cast(),
            stride: CHUNKS * CHUNK,
            first: groups.start,
            x: [&[high], &[low]],
            scales: &scales,
            sums: &sums,
        };
        // SAFETY: a copy of that size; parameters past the groups are zeros.
        unsafe { self.add::<BITS, CHUNKS, PLANES, false, false>(&spans, codes, 0, params, y) };
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
/// The codes lie at `from` and after it, `stride` bytes apart; the activations at `high` and `low`, one for each of a chunk.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn chunk_sums<
    const BITS: usize,
    const PLANES: usize,
    const ASK: bool,
    const IN_ORDER: bool,
>(
    mut from: *const u8,
    stride: usize,
    [high, low]: [*const i8; 2],
    mut ahead: *const u8,
) -> [__m512i; 4] {
    const { assert!(NEAR == 128 && CHUNK == 64, "as written out") };
    // SAFETY: the caller's promise.
    let (high, low) = unsafe { (operands::<BITS>(high), operands::<BITS>(low)) };
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
///
/// # Safety
/// At `x` and after it lies an activation for each code of a chunk.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn operands<const BITS: usize>(x: *const i8) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
    let line = |index: usize| unsafe { _mm512_loadu_si512(x.wrapping_add(index * CHUNK).cast()) };
    let first = line(0);
    if BITS != 4 {
        return (first, first);
    }
    let last = line(1);
    // 16 even ones, 16 odd ones, and so on.
    (_mm512_shuffle_i32x4::<0x88>(first, last), _mm512_shuffle_i32x4::<0xdd>(first, last))
}

/// Sums of the four lanes of every quarter: lane `i` of a quarter is that of `sums[i]`.
#[target_feature(enable = "avx512f")]
#[inline]
fn quarter_sums(sums: [__m512i; 4]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pair(sums[0], sums[1]), pair(sums[2], sums[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}
