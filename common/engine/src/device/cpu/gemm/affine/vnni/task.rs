//! What the integer GEMM and GEMV kernels of AVX-512 share: a task, and its scales and biases.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use cake_checkpoint::FloatType;

use super::super::activations::Activations;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::AffineMatrix;
use crate::device::cpu::isa::prefetch::prefetch;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::{Line, transposed};

/// Groups whose scales and biases are transposed at once.
pub(crate) const PARAM_GROUPS: usize = LANES;
/// Bytes of each output's codes that are taken at once.
pub(crate) const CHUNK: usize = 64;

/// How far ahead in each row codes are prefetched, where that goes from row to row.
const OWN_AHEAD: usize = 1 << 10;

/// What is prefetched beside the bytes at `at` of rows of 16 outputs, where that goes from row to row: how
/// far behind the beginning of the first of them its codes lie, or those of the 16th row after it.
pub(crate) fn own_ahead(at: usize, row_bytes: usize) -> usize {
    let behind = at + OWN_AHEAD;
    match behind < row_bytes {
        true => behind,
        false => LANES * row_bytes + (behind - row_bytes),
    }
}

/// One task of a product: some rows, some outputs.
pub(crate) struct Task<'a> {
    pub(crate) weight: AffineMatrix<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) x: &'a Activations,
    pub(crate) rows: Range<usize>,
    pub(crate) outputs: Range<usize>,
    /// Other tasks have other elements of it.
    pub(crate) target: Target<'a>,
}

impl Task<'_> {
    /// Bytes of the codes of one group.
    pub(crate) fn group_bytes(&self) -> usize {
        self.weight.group / self.weight.bits.per_byte()
    }

    /// Transposes scales and biases of `groups`, at most [`PARAM_GROUPS`], of `V` vectors of outputs from
    /// `outputs.start` on; those past the last output are of no meaning, those past the last group are zeros, so that
    /// whole spans of groups can be computed with. Prefetches those of the outputs behind if `ask`, but for copies.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    pub(crate) fn fill_params<const V: usize>(
        &self,
        outputs: &Range<usize>,
        groups: &Range<usize>,
        ask: bool,
        params: &mut Params<V>,
    ) {
        for vector in 0..V {
            let mut copies = MaybeUninit::uninit();
            let first = outputs.start + vector * LANES;
            let rows = match self.rows_in_place(first, groups, ask) {
                Some(rows) => rows,
                None => self.copied_rows(first, groups, &mut copies),
            };
            // SAFETY: `rows` has those of all groups of 16 outputs, in their places or as copies.
            let square = unsafe { square(self.weight.params, &rows, groups.len()) };
            for (group, (scale, bias)) in square.into_iter().enumerate() {
                params.scales[group][vector].write(scale);
                params.biases[group][vector].write(bias);
            }
        }
    }

    /// Where [`PARAM_GROUPS`] scales and biases from those of `groups` on are, of the 16 outputs from `first` on: in their
    /// places, or in `copies`, with zeros past the end. Prefetches those of the outputs behind if `ask`, but for copies.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    pub(crate) fn param_rows(
        &self,
        first: usize,
        groups: &Range<usize>,
        ask: bool,
        copies: &mut Copies,
    ) -> ParamRows {
        if groups.start + PARAM_GROUPS <= self.weight.groups()
            && let Some(rows) = self.rows_in_place(first, groups, ask)
        {
            return rows;
        }
        self.copied_rows(first, groups, copies)
    }

    /// Where scales and biases from those of `groups` on are, to the end of each output, if there are 16 outputs from
    /// `first` on. Prefetches those of the outputs behind if `ask`.
    #[inline]
    fn rows_in_place(&self, first: usize, groups: &Range<usize>, ask: bool) -> Option<ParamRows> {
        let row_bytes = self.weight.param_bytes();
        let at = first * row_bytes..(first + LANES) * row_bytes;
        let of_groups = groups.start * self.weight.params.bytes();
        let scales = self.weight.scales.get(at.clone())?[of_groups..].as_ptr();
        let biases = self.weight.biases.get(at)?[of_groups..].as_ptr();
        if ask {
            for lane in LANES..2 * LANES {
                prefetch(scales.wrapping_add(lane * row_bytes));
                prefetch(biases.wrapping_add(lane * row_bytes));
            }
        }
        Some(ParamRows { scales, biases, stride: row_bytes })
    }

    /// [`PARAM_GROUPS`] scales and biases from those of `groups` on, of the 16 outputs from `first` on, in `copies`, with zeros
    /// past the end of an output or of the matrix.
    fn copied_rows(&self, first: usize, groups: &Range<usize>, copies: &mut Copies) -> ParamRows {
        let row_bytes = self.weight.param_bytes();
        let copied = [self.weight.scales, self.weight.biases].map(|params| {
            let rows = params.get(first * row_bytes..).unwrap_or(&[]);
            padded_rows(rows, row_bytes, groups.start * self.weight.params.bytes())
        });
        let [scales, biases] = copies.write(copied);
        let (scales, biases) = (scales.as_ptr().cast(), biases.as_ptr().cast());
        ParamRows { scales, biases, stride: CHUNK }
    }

    /// Writes `outputs`, 16 at most, with the layer's bias.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn write_target(&self, row: usize, outputs: &Range<usize>, mut y: __m512) {
        let mask = ((1u32 << outputs.len()) - 1) as u16;
        if let Some(bias) = self.bias {
            let from = bias[outputs.clone()].as_ptr();
            // SAFETY: the mask has the lanes that are inside the bias.
            y = _mm512_add_ps(y, unsafe { _mm512_maskz_loadu_ps(mask, from) });
        }
        // SAFETY: no other task has these elements, and this one holds one part at a time.
        let part = unsafe { self.target.part(row, outputs.start, outputs.len()) };
        // SAFETY: the mask has the lanes that are inside the part.
        unsafe { _mm512_mask_storeu_ps(part.as_mut_ptr().cast(), mask, y) };
    }
}

/// [`PARAM_GROUPS`] scales of 16 outputs, and as many biases.
pub(crate) type Copies = MaybeUninit<[[[Line; 1]; LANES]; 2]>;

/// Where scales and biases of each of 16 outputs are, `stride` bytes from one output to the next.
pub(crate) struct ParamRows {
    pub(crate) scales: *const u8,
    pub(crate) biases: *const u8,
    pub(crate) stride: usize,
}

/// Transposed scales and biases of some groups of `V` vectors of outputs.
pub(crate) struct Params<const V: usize> {
    scales: [[Line; V]; PARAM_GROUPS],
    biases: [[Line; V]; PARAM_GROUPS],
}

impl<const V: usize> Params<V> {
    pub(crate) const ZERO: Params<V> =
        Params { scales: [[Line::ZERO; V]; PARAM_GROUPS], biases: [[Line::ZERO; V]; PARAM_GROUPS] };

    /// The scales and the biases of one group.
    pub(crate) fn group(&self, group: usize) -> [&[Line; V]; 2] {
        [&self.scales[group], &self.biases[group]]
    }

    /// Adds the integer dot products `dot` of group `group` of those here, scaled, to `y`, the accumulator of vector
    /// `vector`; beside them are the scale of the activations and that scale times the sum of their codes.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn chain(
        &self,
        (group, vector): (usize, usize),
        (scale, sum): (__m512, __m512),
        dot: __m512i,
        y: __m512,
    ) -> __m512 {
        let weight_scale = _mm512_castsi512_ps(self.scales[group][vector].read());
        let weight_bias = _mm512_castsi512_ps(self.biases[group][vector].read());
        let scale = _mm512_mul_ps(weight_scale, scale);
        let y = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), y);
        _mm512_fmadd_ps(weight_bias, sum, y)
    }
}

/// `N` chunks from `at` on of the rows of `rows`; zeros past the end of a row or of the rows.
#[cold]
pub(crate) fn padded_rows<const N: usize>(
    rows: &[u8],
    row_bytes: usize,
    at: usize,
) -> [[Line; N]; LANES] {
    let mut padded = [[Line::ZERO; N]; LANES];
    for (row, padded) in rows.chunks_exact(row_bytes).zip(&mut padded) {
        let rest = row.get(at..).unwrap_or(&[]).chunks(CHUNK);
        for (bytes, line) in rest.zip(padded) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
    }
    padded
}

/// Scales and biases of 16 groups of 16 outputs as f32: a vector of outputs for each group, zeros past the first `count`
/// groups.
///
/// # Safety
/// `count` is at most 16, and `rows` has so many scales and biases of type `float` of each of 16 outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
#[inline]
unsafe fn square(
    float: FloatType,
    &ParamRows { scales, biases, stride }: &ParamRows,
    count: usize,
) -> [(__m512i, __m512i); LANES] {
    // The mask reads those alone: experts have many short rows, copies of which took a twentieth of a token's time.
    let mask = ((1u32 << count) - 1) as u16;
    let mut both = [(_mm512_setzero_si512(), _mm512_setzero_si512()); LANES];
    let mut rows = [_mm512_setzero_si512(); LANES];
    if float == FloatType::F32 {
        let mut more = rows;
        for lane in 0..LANES {
            // SAFETY: the caller's promise.
            unsafe {
                let load = |from: *const u8| _mm512_maskz_loadu_epi32(mask, from.cast());
                rows[lane] = load(scales.wrapping_add(lane * stride));
                more[lane] = load(biases.wrapping_add(lane * stride));
            }
        }
        // SAFETY: this function has the instructions.
        let (scales, biases) = unsafe { (transposed(rows), transposed(more)) };
        for group in 0..LANES {
            both[group] = (scales[group], biases[group]);
        }
        return both;
    }
    for (lane, row) in rows.iter_mut().enumerate() {
        let (scales, biases) =
            (scales.wrapping_add(lane * stride), biases.wrapping_add(lane * stride));
        // SAFETY: the caller's promise.
        let (scales, biases) = unsafe {
            let load = |from: *const u8| _mm256_maskz_loadu_epi16(mask, from.cast());
            (load(scales), load(biases))
        };
        *row = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(scales), biases);
    }
    // Columns of pairs: eight of scales, eight of biases.
    // SAFETY: this function has the instructions.
    let pairs = unsafe { transposed(rows) };
    for pair in 0..LANES / 2 {
        let (scales, biases) = (halves(float, pairs[pair]), halves(float, pairs[LANES / 2 + pair]));
        both[2 * pair] = (scales.0, biases.0);
        both[2 * pair + 1] = (scales.1, biases.1);
    }
    both
}

/// The lower and the upper 16 bits of every lane as f32.
#[target_feature(enable = "avx512f,f16c")]
#[inline]
fn halves(float: FloatType, pairs: __m512i) -> (__m512i, __m512i) {
    let upper = _mm512_srli_epi32::<16>(pairs);
    if float == FloatType::F16 {
        let widen = |half| _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(half)));
        (widen(pairs), widen(upper))
    } else {
        (_mm512_slli_epi32::<16>(pairs), _mm512_slli_epi32::<16>(upper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::element::{Bf16, Element, F16, F32};
    use crate::device::cpu::isa::tier::Tier;

    /// Numbers that all types have, as many as there are in so many groups, and nothing behind them.
    fn stored(float: FloatType, count: usize, sign: f32) -> Vec<u8> {
        let values: Vec<f32> = (0..LANES * count).map(|at| sign * (1 + at) as f32).collect();
        let mut bytes = vec![0; values.len() * float.bytes()];
        match float {
            FloatType::F32 => F32::store(&values, &mut bytes),
            FloatType::F16 => F16::store(&values, &mut bytes),
            FloatType::BF16 => Bf16::store(&values, &mut bytes),
        }
        bytes
    }

    #[test]
    fn a_short_block_is_read_to_its_end_and_zeros_follow() {
        if !Tier::all().into_iter().any(|tier| tier.avx512().is_some()) {
            return; // As everywhere, the tiers that this processor has.
        }
        for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
            for count in 1..=PARAM_GROUPS {
                let [scales, biases] = [1.0, -1.0].map(|sign| stored(float, count, sign));
                let stride = count * float.bytes();
                let rows = ParamRows { scales: scales.as_ptr(), biases: biases.as_ptr(), stride };
                let mut lines = [[Line::ZERO; 2]; PARAM_GROUPS];
                // SAFETY: so many of 16 outputs are there, and this processor has the instructions.
                unsafe {
                    for (lines, (scale, bias)) in lines.iter_mut().zip(square(float, &rows, count))
                    {
                        lines[0].write(scale);
                        lines[1].write(bias);
                    }
                }
                for (group, [scale, bias]) in lines.into_iter().enumerate() {
                    for lane in 0..LANES {
                        let there = (group < count).then_some((1 + lane * count + group) as f32);
                        let found = [scale.lane(lane), bias.lane(lane)];
                        let wanted = there.map_or([0.0; 2], |value| [value, -value]);
                        assert_eq!(found, wanted, "{float:?}: {group} of {count}, {lane}");
                    }
                }
            }
        }
    }
}
