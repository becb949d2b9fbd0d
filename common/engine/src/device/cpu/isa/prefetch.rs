//! Prefetches: requests for cache lines ahead of the arithmetic.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use std::arch::asm;
use std::sync::atomic::{AtomicU8, Ordering};

/// Least bytes by which prefetches go ahead of products: what arrives while memory answers.
pub(crate) const AHEAD: usize = 64 << 10;
/// Bytes that a prefetch brings.
pub(crate) const CACHE_LINE: usize = 64;

/// The [bits](Prefetch::bits) of what is prefetched.
static CHOSEN: AtomicU8 = AtomicU8::new(Prefetch::DEFAULT.bits());

/// What a GEMV, or a GEMM of a few rows, with plain numbers prefetches of its weights. Some processors' own prefetchers
/// are the faster ones, and what helps one of them holds up another, so that is measured (`tuning`). No result depends
/// on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefetch {
    /// Lines that are [`AHEAD`] in the order that they lie in, into the second-level cache; those of FP8 weights, too.
    pub(crate) far: bool,
    /// Lines that are a little ahead in each row of plain numbers, into the first-level cache.
    pub(crate) near: bool,
}

impl Prefetch {
    /// Nothing.
    pub(crate) const NONE: Prefetch = Prefetch { far: false, near: false };

    /// What helped on the first processors that this ran on.
    pub(crate) const DEFAULT: Prefetch = Prefetch { far: true, near: true };

    /// What this process prefetches of them.
    pub(crate) fn here() -> Prefetch {
        let bits = CHOSEN.load(Ordering::Relaxed);
        Prefetch { far: bits & 1 != 0, near: bits & 2 != 0 }
    }

    /// Makes this what the process prefetches.
    pub(crate) fn choose(self) {
        CHOSEN.store(self.bits(), Ordering::Relaxed);
    }

    const fn bits(self) -> u8 {
        self.far as u8 | (self.near as u8) << 1
    }
}

/// Prefetches the cache line at `address`, which need not be valid, into the second-level cache, which waits for more
/// lines at a time than the first.
///
/// Written out, because the compiler gathers the intrinsic's calls, and requests that come many at a time hold up the
/// loads behind them.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))] // Miri runs no assembly.
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        asm!("prefetcht1 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    let _ = address; // Not every architecture has a stable way to ask.
}

/// Prefetches the cache line at `address`, which need not be valid, from the second-level cache into the first: a load
/// that has to wait for it holds one of the few places that lines on their way from memory need.
#[inline(always)]
pub(crate) fn prefetch_near(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))] // Miri runs no assembly.
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    let _ = address;
}
