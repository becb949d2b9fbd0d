//! Requests to memory ahead of the arithmetic.

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::x86;

/// Least bytes by which requests to memory go ahead of products: what arrives while memory answers.
pub(crate) const AHEAD: usize = 64 << 10;
/// Bytes that memory is asked for at a time.
pub(crate) const CACHE_LINE: usize = 64;

/// Asks memory for the cache line at `address`, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(address);
    #[cfg(target_arch = "aarch64")]
    neon::prefetch(address);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address; // Not every architecture has a stable way to ask.
}
