//! The tier of x86-64 with tile registers.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use super::vector::Avx512;

/// Proof of AMX-TILE, AMX-BF16 and AMX-INT8 beside AVX-512 with BF16 and VNNI, and of the system's
/// leave to use the tile registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(Avx512);

impl Amx {
    /// The tier, if this processor and this system have it.
    pub(crate) fn detect() -> Option<Amx> {
        static ALLOWED: OnceLock<bool> = OnceLock::new();
        let simd = Avx512::detect()?;
        let beside = simd.bf16().is_some() && simd.vnni().is_some();
        let allowed = || has_instructions() && allow_tiles();
        (beside && *ALLOWED.get_or_init(allowed)).then_some(Amx(simd))
    }

    /// What it has beside.
    pub(crate) fn avx512(self) -> Avx512 {
        self.0
    }
}

/// Whether the processor has AMX-TILE, AMX-BF16 and AMX-INT8.
fn has_instructions() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    #[allow(unused_unsafe, reason = "newer compilers know these calls to be safe")]
    // SAFETY: every processor with AVX-512 has the instruction.
    let (last, features) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0).edx) };
    last >= 7 && features & BF16_TILE_INT8 == BF16_TILE_INT8
}

/// Asks the system to save this process's tile registers when it switches threads; returns
/// whether it does.
#[cfg(target_os = "linux")]
fn allow_tiles() -> bool {
    // From the kernel's arch/x86/include/uapi/asm/prctl.h and its documentation of XSTATE features.
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    let refused =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    refused == 0
}

/// Other systems have ways of their own, which are not known here.
#[cfg(not(target_os = "linux"))]
fn allow_tiles() -> bool {
    false
}
