//! Affine matrices: codes of half a byte or a byte, scales and biases apart from them.

use std::arch::x86_64::*;

use cake_checkpoint::FloatType;

use super::codes::{Codes, nibbles};
use super::lanes::transposed_words;
use super::stored::{LANES, Params, Stored, VECTOR_BYTES};
use crate::device::cpu::gemm::weight::AffineMatrix;

/// Codes of 4 bits, `GROUP` to a scale.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<'a, const GROUP: usize>(pub(super) AffineMatrix<'a>);

/// Codes of a byte that are below 64, `GROUP` to a scale.
#[derive(Clone, Copy)]
pub(super) struct Narrow<'a, const GROUP: usize>(pub(super) AffineMatrix<'a>);

/// Codes of 8 bits, `GROUP` to a scale.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a, const GROUP: usize>(pub(super) AffineMatrix<'a>);

/// Where the codes, the scales and the biases of an output begin.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) biases: *const u8,
}

/// What is the same of all.
macro_rules! shared {
    ($largest:literal) => {
        type Row = Row;
        const GROUP: usize = GROUP;
        const LARGEST: usize = $largest;
        const PIECE_BYTES: usize = VECTOR_BYTES;
        const WIDE: bool = false;

        fn outputs(&self) -> usize {
            self.0.outputs()
        }

        fn groups(&self) -> usize {
            self.0.groups()
        }

        fn bytes(&self) -> (*const u8, usize) {
            (self.0.codes.as_ptr(), self.0.row_bytes())
        }

        #[inline(always)]
        fn row(&self, output: usize) -> Row {
            let params = output * self.0.param_bytes();
            Row {
                codes: self.0.codes.as_ptr().wrapping_add(output * self.0.row_bytes()),
                scales: self.0.scales.as_ptr().wrapping_add(params),
                biases: self.0.biases.as_ptr().wrapping_add(params),
            }
        }

        #[inline(always)]
        fn codes_of(row: Row) -> *const u8 {
            row.codes
        }

        #[inline(always)]
        unsafe fn params(&self, rows: &[Row; LANES], first: usize, count: usize) -> Params {
            // SAFETY: the caller's promises.
            unsafe { params(self.0.params, rows, first, count) }
        }
    };
}

// SAFETY: what is read are whole pieces of a row, the half of one, or whole scales and biases of it.
unsafe impl<const GROUP: usize> Stored<2, 1> for Nibbles<'_, GROUP> {
    shared!(15);
    const EVENS_FIRST: bool = true;

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 2] {
        // SAFETY: the caller's promises.
        unsafe { nibbles(piece_bytes(rows, piece, Self::HALVES, self.0.row_bytes())) }
    }
}

// SAFETY: as above.
unsafe impl<const GROUP: usize> Stored<1, 1> for Narrow<'_, GROUP> {
    shared!(63);

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 1] {
        // SAFETY: the caller's promises.
        unsafe { [piece_bytes(rows, piece, Self::HALVES, self.0.row_bytes())] }
    }
}

// SAFETY: as above.
unsafe impl<const GROUP: usize> Stored<1, 1> for Bytes<'_, GROUP> {
    shared!(255);

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 1] {
        // SAFETY: the caller's promises.
        unsafe { [piece_bytes(rows, piece, Self::HALVES, self.0.row_bytes())] }
    }
}

/// The bytes of a piece, of which the last one of a row of `row_bytes` may be half of one if pieces have `halves`.
///
/// # Safety
/// There is such a piece, and the caller is compiled for what [`Codes`] says.
#[inline(always)]
unsafe fn piece_bytes<C: Codes>(rows: C::Rows, piece: usize, halves: bool, row_bytes: usize) -> C {
    let at = piece * VECTOR_BYTES;
    // SAFETY: the caller's promises.
    unsafe {
        match halves && at + VECTOR_BYTES > row_bytes {
            true => C::half(rows, at),
            false => C::load(rows, at),
        }
    }
}

/// 32 codes of a byte as words: the even ones, then the odd ones.
///
/// # Safety
/// The caller is compiled for AVX2.
#[inline(always)]
pub(super) unsafe fn split(bytes: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe { [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)] }
}

/// Scales and biases of some groups of eight outputs.
///
/// # Safety
/// As [`Stored::params`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn params(
    float: FloatType,
    rows: &[Row; LANES],
    first: usize,
    count: usize,
) -> Params {
    let width = float.bytes();
    let at = first * width;
    if count < LANES {
        // Copies, in which there is as much behind each as is read.
        let mut copies = [[[0u8; LANES * size_of::<f32>()]; 2]; LANES];
        let mut copied = *rows;
        for (row, [scales, biases]) in copied.iter_mut().zip(&mut copies) {
            for (from, to) in [(&mut row.scales, scales), (&mut row.biases, biases)] {
                // SAFETY: so many are there, by the caller's promise.
                let bytes = unsafe { std::slice::from_raw_parts(from.add(at), count * width) };
                to[..bytes.len()].copy_from_slice(bytes);
                *from = to.as_ptr();
            }
        }
        // SAFETY: as many bytes as eight of the widest numbers.
        return unsafe { whole_params(float, &copied, 0) };
    }
    // SAFETY: the caller's promise.
    unsafe { whole_params(float, rows, at) }
}

/// Scales and biases of eight groups of eight outputs, `at` bytes behind the beginnings of the rows.
///
/// # Safety
/// They are there.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn whole_params(float: FloatType, rows: &[Row; LANES], at: usize) -> Params {
    if float == FloatType::F32 {
        // SAFETY: the caller's promise; this function has the instructions.
        return unsafe {
            Params::of_outputs(|lane| {
                let Row { scales, biases, .. } = rows[lane];
                (_mm256_loadu_ps(scales.add(at).cast()), _mm256_loadu_ps(biases.add(at).cast()))
            })
        };
    }
    // Halves of a vector are squares of 8 × 8 numbers of 16 bits: one of scales, one of biases.
    let mut all = [_mm256_setzero_si256(); LANES];
    for lane in 0..LANES {
        let Row { scales, biases, .. } = rows[lane];
        // SAFETY: the caller's promise.
        all[lane] = unsafe { _mm256_loadu2_m128i(biases.add(at).cast(), scales.add(at).cast()) };
    }
    let all = transposed_words(all);
    let zero = [_mm256_setzero_ps(); LANES];
    let mut params = Params { scales: zero, biases: zero };
    for (group, both) in all.into_iter().enumerate() {
        let (scales, biases) = (_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
        (params.scales[group], params.biases[group]) = match float {
            FloatType::F16 => (_mm256_cvtph_ps(scales), _mm256_cvtph_ps(biases)),
            _ => (widened(scales), widened(biases)),
        };
    }
    params
}

/// Eight bf16 as f32.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}
