//! The C library's allocator, counted.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn malloc_usable_size(block: *mut c_void) -> usize;
}

/// Bytes of blocks that are called large here: those that `Reuse` keeps.
const LARGE: usize = 128 << 10;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LARGE_BLOCKS: AtomicUsize = AtomicUsize::new(0);

static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this process holds the same: what one allocates is counted as another's.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What some work took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// The most bytes that this process held at any time, beyond those that it held before.
    pub(crate) peak: u64,
    /// Those of them that its result holds.
    pub(crate) kept: u64,
    /// How many large blocks were asked for.
    pub(crate) large: usize,
}

/// Calls `work`, beside which nothing else of this process may allocate.
pub(crate) fn count<R>(work: impl FnOnce() -> R) -> Count {
    let held = HELD.load(Ordering::SeqCst);
    MOST.store(held, Ordering::SeqCst);
    LARGE_BLOCKS.store(0, Ordering::SeqCst);
    let result = work();
    let (most, kept) = (MOST.load(Ordering::SeqCst), HELD.load(Ordering::SeqCst));
    let large = LARGE_BLOCKS.load(Ordering::SeqCst);
    drop(result);
    Count { peak: (most - held) as u64, kept: kept.saturating_sub(held) as u64, large }
}

/// Counts a block that was just taken.
///
/// # Safety
/// The block is one of the C library's, or null.
unsafe fn taken(block: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    let bytes = unsafe { malloc_usable_size(block) };
    let held = HELD.fetch_add(bytes, Ordering::SeqCst) + bytes;
    MOST.fetch_max(held, Ordering::SeqCst);
    if bytes >= LARGE {
        LARGE_BLOCKS.fetch_add(1, Ordering::SeqCst);
    }
    block
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    // SAFETY: what the C library's own does.
    unsafe { taken(__libc_malloc(bytes)) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { taken(__libc_calloc(count, bytes)) }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { taken(__libc_memalign(align, bytes)) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    memalign(align, bytes)
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    const ENOMEM: c_int = 12;
    let block = memalign(align, bytes);
    if block.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(block) };
    0
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise. Both blocks are counted for a moment, as both may be there.
    unsafe {
        let before = malloc_usable_size(block);
        let after = taken(__libc_realloc(block, bytes));
        HELD.fetch_sub(before, Ordering::SeqCst);
        after
    }
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        HELD.fetch_sub(malloc_usable_size(block), Ordering::SeqCst);
        __libc_free(block);
    }
}
