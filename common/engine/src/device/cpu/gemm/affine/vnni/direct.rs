//! The GEMV, and the GEMM of few rows: weights are multiplied in place, as they lie in memory, which sets the pace.
//!
//! A vector of codes belongs to one output, so its accumulator has to be summed across lanes. That is
//! done for 16 outputs at a time, by transposing and adding, and gives vectors of 16 outputs.
//!
//! Each four of them is a chunk behind the one before it: where rows lie a multiple of 2 KiB apart, the same chunk of all
//! 16 has few places in the first-level cache, and asked for together they wait for each other. With that, activations
//! that are put in the order of half bytes once for all outputs, and requests that wait for products, one thread read 4-bit
//! codes 1.1 to 1.4 times as fast in rows of 384 bytes, 2 and 4 KiB, 0.94 times in rows of 1 KiB, and codes of a byte 1.0 to
//! 1.2 times (Zen 4; all three together).

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::activations::Activations;
use super::super::call::Call;
use super::sums::{FOURS, SPAN, Sorted, by_quarters, output_sums, quarter_sums, sort};
use super::task::{CHUNK, PARAM_GROUPS, Params, Task, own_ahead, padded_rows};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, Bits, SHORT_GROUP};
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE, prefetch, prefetch_near};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::{Avx512Vnni, Line};
use crate::device::cpu::pool::Tasks;

/// How far ahead in each row of codes a line is prefetched into the first-level cache; one line, two
/// and four are alike. Took 8 % off the time of one row beside 4-bit codes.
const NEAR: usize = 2 * CHUNK;

/// Rows beside which transposing accumulators costs less than transposing weights.
pub(crate) const FEW_ROWS: usize = 3;

/// Bytes that a task takes at most beside activations of so many inputs.
pub(crate) fn sorted_bytes(inputs: u64) -> u64 {
    let row = (inputs / SPAN as u64).saturating_mul(size_of::<Sorted>() as u64);
    row.saturating_mul(FEW_ROWS as u64)
}

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
    /// The same as half bytes are multiplied with them; nothing beside whole ones.
    sorted: &'a [Sorted],
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
        let sorted = match BITS {
            4 => self.sorted(),
            _ => Vec::new(),
        };
        let of_row = self.weight.inputs / SPAN; // Those of a part of a span are copied when they are needed.
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
                    let sorted = sorted.get(row * of_row..).unwrap_or_default();
                    let spans = self.spans(codes, (row, sorted), whole.clone());
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

    /// The activations of whole spans of all rows, in the order of half bytes.
    #[target_feature(enable = "avx512f")]
    fn sorted(&self) -> Vec<Sorted> {
        let mut sorted = Vec::with_capacity(self.rows.len() * (self.weight.inputs / SPAN));
        for row in self.rows.clone() {
            let planes = self.x.planes(row);
            let [high, low] = [planes.high, planes.low].map(|plane| plane.as_chunks().0);
            for (high, low) in high.iter().zip(low).take(self.weight.inputs / SPAN) {
                sorted.push(sort(high, low));
            }
        }
        sorted
    }

    /// Whole spans of the outputs whose codes are `codes`, beside a row of the task, of which `sorted` begins with what
    /// [`Task::sorted`] gives, if anything.
    fn spans<'a>(
        &'a self,
        codes: &[u8],
        (row, sorted): (usize, &'a [Sorted]),
        groups: Range<usize>,
    ) -> Spans<'a> {
        let (row, group) = (self.rows.start + row, self.weight.group);
        let planes = self.x.planes(row);
        let inputs = groups.start * group..groups.end * group;
        let spans = inputs.start / SPAN..inputs.end / SPAN;
        let [high, low] = [&planes.high[inputs.clone()], &planes.low[inputs]];
        Spans {
            from: codes.as_ptr().wrapping_add(groups.start * self.group_bytes()),
            stride: self.weight.row_bytes(),
            first: groups.start,
            x: [high.as_chunks().0, low.as_chunks().0],
            sorted: sorted.get(spans).unwrap_or_default(),
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
    /// Sums of a four of outputs lie on the stack until those of the last four of the same chunk are there; then they stay in
    /// registers until they are scaled.
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
        let Spans { mut from, stride, first, x: [high, low], sorted, scales, sums } = *spans;
        let span = SPAN / self.weight.group;
        let chunks = high.len() * CHUNKS;
        let begin = first * self.group_bytes();
        let mut ahead = codes.as_ptr();
        // Where the activations of a chunk are, and how far behind the chunk before it.
        let (mut x, operand) = match BITS {
            4 => {
                assert!(sorted.len() == high.len(), "those of all spans");
                let first = sorted.as_ptr().cast::<u8>();
                ([first, first.wrapping_add(size_of::<Sorted>() / 2)], size_of::<Sorted>())
            }
            _ => ([high.as_ptr().cast(), low.as_ptr().cast()], CHUNK),
        };
        // From one four of outputs to the next: four rows on, a chunk back.
        let four = if IN_ORDER { 4 * CHUNK } else { 4 * stride };
        let all = if IN_ORDER { LANES * CHUNK } else { CHUNK };
        let (hop, hop_ahead) = ((4 * stride).wrapping_sub(CHUNK), four.wrapping_sub(all));
        let mut fours = [[Line::ZERO; FOURS]; FOURS];
        let mut quarters = [[_mm512_setzero_si512(); 4]; CHUNKS];
        let mut sum = *y;
        for step in 0..chunks + FOURS - 1 {
            if ASK {
                ahead = Ahead::of::<IN_ORDER>(codes, stride, begin + step * CHUNK);
            }
            if ASK && step < chunks && step.is_multiple_of(CHUNKS) {
                let first = first + step / CHUNKS * span;
                self.prefetch_params(first_output, &(first..first + span));
            }
            macro_rules! outputs {
                ($($four:literal)+) => {$(
                    let chunk = step.wrapping_sub($four);
                    if chunk < chunks {
                        let from = from.wrapping_add(hop.wrapping_mul($four));
                        let ahead = ahead.wrapping_add(hop_ahead.wrapping_mul($four));
                        let [high, low] = x;
                        let x = [high.wrapping_sub($four * operand), low.wrapping_sub($four * operand)];
                        // SAFETY: the caller's promise.
                        let sums = unsafe {
                            sums_of_four::<BITS, PLANES, ASK, IN_ORDER>(from, stride, x, ahead)
                        };
                        fours[chunk % FOURS][$four].write(sums);
                    }
                )+};
            }
            outputs!(0 1 2 3);
            from = from.wrapping_add(CHUNK);
            let [high, low] = x;
            x = [high.wrapping_add(operand), low.wrapping_add(operand)];
            // The chunk that the last four is done with.
            let chunk = step.wrapping_sub(FOURS - 1);
            if chunk >= chunks {
                continue;
            }
            quarters[chunk % CHUNKS] = by_quarters(&fours[chunk % FOURS]);
            if chunk % CHUNKS != CHUNKS - 1 {
                continue;
            }
            let index = chunk / CHUNKS;
            let first = first + index * span;
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
            sorted: &[sort(&high, &low)],
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

/// Integer dot products of each quarter of [`CHUNK`] bytes of codes of each of four outputs with the codes of activations at
/// `x`, of which there are upper and lower bytes: lane `i` of a quarter is that of output `i`. With `ASK`, prefetches as many
/// bytes from `ahead` on meanwhile, see [`Ahead`], and into the first-level cache those [`NEAR`] bytes behind the ones that it
/// multiplies.
///
/// # Safety
/// The codes lie at `from` and after it, `stride` bytes apart; at each of `x` lies an operand, beside half bytes two.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn sums_of_four<
    const BITS: usize,
    const PLANES: usize,
    const ASK: bool,
    const IN_ORDER: bool,
>(
    from: *const u8,
    stride: usize,
    x: [*const u8; 2],
    ahead: *const u8,
) -> __m512i {
    const { assert!(NEAR == 128 && CHUNK == 64, "as written out") };
    // SAFETY: the caller's promise.
    let line = |from: *const u8| unsafe { _mm512_loadu_si512(from.cast()) };
    let last = if BITS == 4 { CHUNK } else { 0 };
    let [high, low] =
        [(line(x[0]), line(x[0].wrapping_add(last))), (line(x[1]), line(x[1].wrapping_add(last)))];
    let thrice = 3 * stride;
    macro_rules! sums {
        ($at:expr; $in_order:literal, $own:literal, $near:literal) => {{
            if ASK {
                // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
                unsafe {
                    ask!(IN_ORDER, $in_order, $own, $near;
                        ahead = ahead, from = from, stride = stride, thrice = thrice);
                }
            }
            output_sums::<BITS, PLANES>(line(from.wrapping_add($at)), high, low)
        }};
    }
    let mut sums = quarter_sums([
        sums!(0; "0", "{ahead}", "{from}"),
        sums!(stride; "64", "{ahead} + {stride}", "{from} + {stride}"),
        sums!(2 * stride; "128", "{ahead} + 2 * {stride}", "{from} + 2 * {stride}"),
        sums!(thrice; "192", "{ahead} + {thrice}", "{from} + {thrice}"),
    ]);
    // Whatever is requested next waits for these: compilers put all requests of a step before its first product.
    // SAFETY: it is a comment.
    unsafe {
        asm!("/* {} */", inout(zmm_reg) sums, options(nomem, nostack, preserves_flags));
    }
    sums
}
