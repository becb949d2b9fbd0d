//! What processors can do: their tiers of instructions, vectors, tile registers, and prefetches.

pub(crate) mod choice;
pub(crate) mod instructions;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod packed;
pub(crate) mod prefetch;
pub(crate) mod simd;
pub(crate) mod tier;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;
