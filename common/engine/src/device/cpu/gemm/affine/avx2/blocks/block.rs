//! What a type of blocks is.

use super::super::codes::Codes;
use super::super::stored::{LANES, Params, WideParams};

/// A type of blocks, of which a piece has `V` vectors in `N` sheaves.
///
/// # Safety
/// Whoever implements it promises that the methods read the bytes of one block each, or of as many as they are told.
pub(in super::super) unsafe trait Block<const V: usize, const N: usize>:
    Copy + Send + Sync
{
    /// Codes of a block: whole pieces.
    const CODES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Codes that share a scale and a bias.
    const GROUP: usize;
    /// The largest code.
    const LARGEST: usize;

    /// The codes of a piece of the block that begins `block` bytes behind each of `rows`. The addresses of outputs' pieces
    /// differ by their rows alone.
    ///
    /// # Safety
    /// There are such a block and such a piece, and the caller is compiled for what [`Codes`] says.
    unsafe fn codes<C: Codes>(rows: C::Rows, block: usize, piece: usize) -> [C; V];

    /// Scales and biases of `count` groups, at most [`LANES`], of eight outputs, of which the blocks are these. If a block
    /// has several groups, they are eight from group `first` of it on; else they are those of as many blocks.
    ///
    /// # Safety
    /// There are such groups, and the caller is compiled for AVX2, FMA and F16C.
    unsafe fn params(blocks: &[*const u8; LANES], first: usize, count: usize) -> Params;

    /// Those of [`LANES`] blocks, of one group each, of twice as many outputs, if there is a way that is better than to join
    /// those of eight.
    ///
    /// # Safety
    /// There are such blocks, and the caller is compiled for AVX2, FMA, F16C and AVX-512 with BW, DQ and VL.
    #[inline(always)]
    unsafe fn wide_params(_blocks: &[[*const u8; LANES]; 2], _to: &mut WideParams) -> bool {
        false
    }
}

/// Declares types of blocks: codes, bytes, group and largest code, vectors and sheaves of a piece, then how codes and
/// parameters of a block are found, and perhaps those of more outputs.
macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident: $codes:literal codes in $bytes:literal bytes, groups of $group:literal up to $largest:literal,
        pieces of $v:literal vectors, $n:literal sheaves,
        |$rows:ident, $block:ident, $piece:ident| $load:expr,
        |$blocks:ident, $first:ident, $count:ident| $params:expr $(, |$both:ident, $to:ident| $wide:expr)?;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(in super::super) struct $name;

        // SAFETY: every access is inside of the block as the type is defined.
        unsafe impl Block<$v, $n> for $name {
            const CODES: usize = $codes;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;
            const LARGEST: usize = $largest;

            #[inline(always)]
            unsafe fn codes<C: Codes>(
                $rows: C::Rows,
                $block: usize,
                $piece: usize,
            ) -> [C; $v] {
                // SAFETY: the caller's promises.
                unsafe { $load }
            }

            #[target_feature(enable = "avx2,fma,f16c")] // Closures in it have these instructions, too.
            #[inline]
            unsafe fn params($blocks: &[*const u8; LANES], $first: usize, $count: usize) -> Params {
                // SAFETY: the caller's promises.
                unsafe { $params }
            }

            $(
                #[inline(always)]
                unsafe fn wide_params($both: &[[*const u8; LANES]; 2], $to: &mut WideParams) -> bool {
                    // SAFETY: the caller's promises.
                    unsafe { $wide };
                    true
                }
            )?
        }
    )+};
}
pub(super) use blocks;
