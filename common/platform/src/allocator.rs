//! The C library's allocator, told to give freed memory back.

/// Gives large freed allocations back to the system at once, where the allocator can be told to.
///
/// glibc keeps freed blocks of up to 32 MiB for reuse once one of that size was freed, in a pool per
/// thread: after a few pushes and loads a worker held 20 to 40 MiB that nobody used, beyond its
/// budget. Call it before other threads start.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        /// `M_MMAP_THRESHOLD` of malloc.h.
        const MMAP_THRESHOLD: c_int = -3;
        /// glibc's own first value; that it is set keeps glibc from raising it.
        const THRESHOLD_BYTES: c_int = 128 << 10;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // SAFETY: mallopt takes two integers by value and checks them; glibc documents both.
        let accepted = unsafe { mallopt(MMAP_THRESHOLD, THRESHOLD_BYTES) };
        if accepted == 0 {
            tracing::debug!("the allocator keeps freed memory");
        }
    }
}
