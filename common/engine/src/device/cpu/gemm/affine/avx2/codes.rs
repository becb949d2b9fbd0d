//! Vectors in which codes are unpacked: the formulas of encodings are written once for both widths.

use std::arch::x86_64::*;

use super::narrow::Table;
use super::pattern::Pattern;

/// Bytes of one output, 32 of them, or as many of each of two outputs.
///
/// # Safety
/// Whoever implements it promises that no method reads more than it says. The callers of all methods are compiled for
/// AVX2, those of `__m512i` for AVX-512 with BW, too, and what is read is there.
pub(super) unsafe trait Codes: Copy {
    /// Where the bytes of each output begin.
    type Rows: Copy;

    /// 32 bytes `at` bytes behind the beginning.
    unsafe fn load(rows: Self::Rows, at: usize) -> Self;

    /// 16 bytes, then zeros.
    unsafe fn half(rows: Self::Rows, at: usize) -> Self;

    /// 16 bytes as words; where `short`, eight bytes, then zeros.
    unsafe fn words(rows: Self::Rows, at: usize, short: bool) -> Self;

    /// 16 bytes at one place and 16 at another; where `short`, eight of each, and zeros.
    unsafe fn halves_at(rows: Self::Rows, at: [usize; 2], short: bool) -> Self;

    /// The lower halves of 16 bytes, then the upper ones.
    unsafe fn halves(rows: Self::Rows, at: usize) -> Self;

    /// These bits where the bits of four bytes are set, one for each byte.
    unsafe fn or_where_set(self, rows: Self::Rows, at: usize, bits: u8) -> Self;

    /// The bits of each byte that are set in both.
    unsafe fn and(self, bits: u8) -> Self;

    /// The bits of each byte that are set in one of both.
    unsafe fn xor(self, bits: u8) -> Self;

    /// The bits that are set in either.
    unsafe fn or(self, other: Self) -> Self;

    /// Words shifted to the left.
    unsafe fn left<const BITS: u32>(self) -> Self;

    /// Words shifted to the right.
    unsafe fn right<const BITS: u32>(self) -> Self;

    /// The same by as many bits as is known only here.
    unsafe fn right_by(self, bits: usize) -> Self;

    /// What is in the table at the places that bytes are, each from 0 to 15.
    unsafe fn looked_up(self, table: &Table) -> Self;

    /// Codes that lie one behind the other, with bits of others above them: those at even places in even bytes, and
    /// those at odd places in odd ones.
    unsafe fn parted(self, pattern: &Pattern) -> [Self; 2];
}

/// The lower halves of bytes, and the upper ones, as bytes.
///
/// # Safety
/// As [`Codes`].
#[inline(always)]
pub(super) unsafe fn nibbles<C: Codes>(bytes: C) -> [C; 2] {
    // SAFETY: the caller's promise.
    unsafe { [bytes.and(15), bytes.right::<4>().and(15)] }
}

// SAFETY: the instructions are those that callers are compiled for.
unsafe impl Codes for __m256i {
    type Rows = *const u8;

    #[inline(always)]
    unsafe fn load(rows: *const u8, at: usize) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_loadu_si256(rows.wrapping_add(at).cast()) }
    }

    #[inline(always)]
    unsafe fn half(rows: *const u8, at: usize) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_zextsi128_si256(_mm_loadu_si128(rows.wrapping_add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn words(rows: *const u8, at: usize, short: bool) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_cvtepu8_epi16(sixteen(rows, at, short)) }
    }

    #[inline(always)]
    unsafe fn halves(rows: *const u8, at: usize) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let twice = _mm256_broadcastsi128_si256(sixteen(rows, at, false));
            let bits = _mm256_set_epi64x(4, 4, 0, 0);
            _mm256_and_si256(_mm256_srlv_epi64(twice, bits), _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn or_where_set(self, rows: *const u8, at: usize, bits: u8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let set = rows.wrapping_add(at).cast::<i32>().read_unaligned();
            // Each byte eight times, then bit `i` of byte `i` of eight.
            let places = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(set), places), own);
            self.or(_mm256_cmpeq_epi8(set, own).and(bits))
        }
    }

    #[inline(always)]
    unsafe fn and(self, bits: u8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_and_si256(self, _mm256_set1_epi8(bits as i8)) }
    }

    #[inline(always)]
    unsafe fn xor(self, bits: u8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_xor_si256(self, _mm256_set1_epi8(bits as i8)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: __m256i) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn left<const BITS: u32>(self) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_sll_epi16(self, _mm_cvtsi32_si128(BITS as i32)) }
    }

    #[inline(always)]
    unsafe fn right<const BITS: u32>(self) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_srl_epi16(self, _mm_cvtsi32_si128(BITS as i32)) }
    }

    #[inline(always)]
    unsafe fn right_by(self, bits: usize) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_srl_epi16(self, _mm_cvtsi32_si128(bits as i32)) }
    }

    #[inline(always)]
    unsafe fn looked_up(self, table: &Table) -> __m256i {
        // SAFETY: a whole table; the caller's promises.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, self)
        }
    }

    #[inline(always)]
    unsafe fn halves_at(rows: *const u8, [first, last]: [usize; 2], short: bool) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe { _mm256_set_m128i(sixteen(rows, last, short), sixteen(rows, first, short)) }
    }

    #[inline(always)]
    unsafe fn parted(self, pattern: &Pattern) -> [__m256i; 2] {
        let [even, odd] = &pattern.places;
        let [even_by, odd_by] = &pattern.factors;
        // SAFETY: whole arrays; the caller's promises.
        unsafe {
            let load = |from: *const u8| _mm256_loadu_si256(from.cast());
            let even = _mm256_shuffle_epi8(self, load(even.as_ptr()));
            let odd = _mm256_shuffle_epi8(self, load(odd.as_ptr()));
            let even = _mm256_mullo_epi16(even, load(even_by.as_ptr().cast()));
            let odd = _mm256_mullo_epi16(odd, load(odd_by.as_ptr().cast()));
            [even.right::<8>(), _mm256_and_si256(odd, _mm256_set1_epi16(0xff00_u16 as i16))]
        }
    }
}

// SAFETY: as above.
unsafe impl Codes for __m512i {
    type Rows = [*const u8; 2];

    #[inline(always)]
    unsafe fn load([first, last]: [*const u8; 2], at: usize) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { both(__m256i::load(first, at), __m256i::load(last, at)) }
    }

    #[inline(always)]
    unsafe fn half([first, last]: [*const u8; 2], at: usize) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { both(__m256i::half(first, at), __m256i::half(last, at)) }
    }

    #[inline(always)]
    unsafe fn words([first, last]: [*const u8; 2], at: usize, short: bool) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe {
            let first = _mm256_castsi128_si256(sixteen(first, at, short));
            let bytes = _mm256_inserti128_si256::<1>(first, sixteen(last, at, short));
            _mm512_cvtepu8_epi16(bytes)
        }
    }

    #[inline(always)]
    unsafe fn halves([first, last]: [*const u8; 2], at: usize) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe {
            let first = _mm512_broadcast_i32x4(sixteen(first, at, false));
            let twice = _mm512_mask_broadcast_i32x4(first, 0xff00, sixteen(last, at, false));
            let bits = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
            _mm512_and_si512(_mm512_srlv_epi64(twice, bits), _mm512_set1_epi8(15))
        }
    }

    #[inline(always)]
    unsafe fn or_where_set(self, [first, last]: [*const u8; 2], at: usize, bits: u8) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe {
            let first = first.wrapping_add(at).cast::<u32>().read_unaligned();
            let last = last.wrapping_add(at).cast::<u32>().read_unaligned();
            let set = u64::from(first) | u64::from(last) << 32;
            self.or(_mm512_maskz_mov_epi8(set, _mm512_set1_epi8(bits as i8)))
        }
    }

    #[inline(always)]
    unsafe fn and(self, bits: u8) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_and_si512(self, _mm512_set1_epi8(bits as i8)) }
    }

    #[inline(always)]
    unsafe fn xor(self, bits: u8) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_xor_si512(self, _mm512_set1_epi8(bits as i8)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: __m512i) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn left<const BITS: u32>(self) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_slli_epi16::<BITS>(self) }
    }

    #[inline(always)]
    unsafe fn right<const BITS: u32>(self) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_srli_epi16::<BITS>(self) }
    }

    #[inline(always)]
    unsafe fn right_by(self, bits: usize) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { _mm512_srl_epi16(self, _mm_cvtsi32_si128(bits as i32)) }
    }

    #[inline(always)]
    unsafe fn looked_up(self, table: &Table) -> __m512i {
        // SAFETY: a whole table; the caller's promises.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, self)
        }
    }

    #[inline(always)]
    unsafe fn halves_at([first, last]: [*const u8; 2], at: [usize; 2], short: bool) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe { both(__m256i::halves_at(first, at, short), __m256i::halves_at(last, at, short)) }
    }

    #[inline(always)]
    unsafe fn parted(self, pattern: &Pattern) -> [__m512i; 2] {
        let [even, odd] = &pattern.places;
        let [even_by, odd_by] = &pattern.factors;
        // SAFETY: whole arrays; the caller's promises.
        unsafe {
            let load = |from: *const u8| _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
            let even = _mm512_shuffle_epi8(self, load(even.as_ptr()));
            let odd = _mm512_shuffle_epi8(self, load(odd.as_ptr()));
            let even = _mm512_mullo_epi16(even, load(even_by.as_ptr().cast()));
            let odd = _mm512_mullo_epi16(odd, load(odd_by.as_ptr().cast()));
            [even.right::<8>(), _mm512_and_si512(odd, _mm512_set1_epi16(0xff00_u16 as i16))]
        }
    }
}

/// A vector of two outputs.
#[inline(always)]
unsafe fn both(first: __m256i, last: __m256i) -> __m512i {
    // SAFETY: the callers' promises.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last) }
}

/// A vector of 16 outputs.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub(super) fn joined(first: __m256, last: __m256) -> __m512 {
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(first), last)
}

/// 16 bytes, or eight and zeros.
#[inline(always)]
unsafe fn sixteen(row: *const u8, at: usize, short: bool) -> __m128i {
    let from = row.wrapping_add(at).cast();
    // SAFETY: the callers' promises.
    unsafe { if short { _mm_loadl_epi64(from) } else { _mm_loadu_si128(from) } }
}
