//! An allocator for programs that run a model: it keeps large blocks while a step runs.
//!
//! Every layer of a step asks for blocks of the same few sizes. Those that the C library takes
//! from the system one by one, page by page, cost a fifth of a prompt's time. [`scratch_bytes`]
//! counts what is kept.
//!
//! [`scratch_bytes`]: crate::scratch_bytes

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Bytes from which on blocks are kept: those that glibc takes from the system itself, as long as
/// its `M_MMAP_THRESHOLD` is not raised.
const LARGE: usize = 128 << 10;
/// Most blocks that are kept; a layer has some twenty.
const MOST: usize = 64;

/// The system's allocator, but for large blocks that a thread frees while it runs a step: those
/// are kept for its requests of the same size and alignment until the step ends.
pub struct Reuse;

/// Gives free memory back to the system, which glibc's allocator otherwise keeps for what comes next: for
/// when something large and rare has ended. Takes some milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointer, and touches nothing but the allocator's free memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Blocks of this size and more are the system's own after [`keep_little`], and
const MAPPED: i32 = 4 << 20;
/// no thread's part of the allocator keeps more than this free at its end.
const KEPT_FREE: i32 = 1 << 20;

/// Has glibc's allocator keep little of what is freed, for a program that is sent much now and then. By itself it keeps
/// up to 64 MiB for each of its parts once a large block was freed, and [`give_back`] does not reach the end of any but
/// the first: a server that had been sent some hundred bodies of 15 MiB kept 130 MiB of them.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointer, and sets numbers of the allocator's own. What is refused leaves them as they were.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_FREE);
    }
}

/// Has all threads share one part of glibc's allocator: each part takes 64 MiB of addresses, which count where these are
/// bounded. To be called before the second thread.
pub fn share_addresses() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: as in `keep_little`.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

thread_local! {
    /// Without a destructor, so that it is there as long as the thread allocates.
    static KEPT: UnsafeCell<Kept> = const { UnsafeCell::new(Kept::NEW) };
}

/// Calls `work`, which must not allocate, with what this thread keeps.
fn with_kept<R>(work: impl FnOnce(&mut Kept) -> R) -> R {
    // SAFETY: no other thread has it, and `work` does not come here again, as it allocates nothing.
    KEPT.with(|kept| work(unsafe { &mut *kept.get() }))
}

/// A step of this thread; when its outermost one ends, what was kept goes back to the system.
pub(crate) struct Step {
    /// It ends on the thread that it began on.
    here: PhantomData<*const ()>,
}

impl Step {
    pub(crate) fn begin() -> Step {
        with_kept(Kept::begin);
        Step { here: PhantomData }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        with_kept(Kept::end);
    }
}

// SAFETY: every block is one of the system's, of the layout asked for: kept ones are given to
// requests of the layout they were made for.
unsafe impl GlobalAlloc for Reuse {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match kept(layout) {
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
            Some(block) => block,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match kept(layout) {
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc_zeroed(layout) },
            Some(block) => {
                // SAFETY: the block has that size and nobody else has it.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() < LARGE || !with_kept(|kept| kept.put(block, layout)) {
            // SAFETY: the caller's promise, and the block is the system's.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, and the block is the system's.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// A block of that layout, if this thread keeps one.
fn kept(layout: Layout) -> Option<*mut u8> {
    if layout.size() < LARGE { None } else { with_kept(|kept| kept.take(layout)) }
}

/// Blocks of the system's that nobody has.
struct Kept {
    /// Steps that run, one inside the other.
    steps: usize,
    count: usize,
    blocks: [(*mut u8, Layout); MOST],
}

impl Kept {
    const NEW: Kept =
        Kept { steps: 0, count: 0, blocks: [(null_mut(), Layout::new::<u8>()); MOST] };

    fn begin(&mut self) {
        self.steps += 1;
    }

    fn end(&mut self) {
        self.steps -= 1;
        if self.steps == 0 {
            for (block, layout) in &self.blocks[..self.count] {
                // SAFETY: the block is the system's, of this layout, and nobody has it.
                unsafe { System.dealloc(*block, *layout) }
            }
            self.count = 0;
        }
    }

    /// A block of that layout.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let held = &mut self.blocks[..self.count];
        let found = held.iter().rposition(|(_, of)| *of == layout)?;
        let (block, _) = held[found];
        held.swap(found, self.count - 1);
        self.count -= 1;
        Some(block)
    }

    /// Keeps a block; returns whether it did.
    fn put(&mut self, block: *mut u8, layout: Layout) -> bool {
        if self.steps == 0 || self.count == MOST {
            return false;
        }
        self.blocks[self.count] = (block, layout);
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// A block of the system's, to be kept.
    fn block(layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    #[test]
    fn blocks_come_back_to_requests_of_their_layout_until_the_outermost_step_ends() {
        let (mut kept, large) = (Kept::NEW, layout(LARGE, 16));
        let first = block(large);
        assert!(!kept.put(first, large), "no step runs");
        kept.begin();
        assert!(kept.put(first, large));
        assert_eq!(kept.take(layout(LARGE + 1, 16)), None);
        assert_eq!(kept.take(layout(LARGE, 32)), None);
        assert_eq!(kept.take(large), Some(first));
        assert_eq!(kept.take(large), None);
        assert!(kept.put(first, large));
        kept.begin();
        kept.end();
        assert_eq!(kept.count, 1, "a step runs still");
        kept.end();
        assert_eq!(kept.count, 0);
        assert_eq!(kept.take(large), None);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (mut kept, large) = (Kept::NEW, layout(LARGE, 16));
        kept.begin();
        for _ in 0..MOST {
            assert!(kept.put(block(large), large));
        }
        let last = block(large);
        assert!(!kept.put(last, large));
        // SAFETY: allocated above, not kept.
        unsafe { System.dealloc(last, large) };
        kept.end();
    }

    #[test]
    fn zeros_are_zeros_in_a_block_that_was_used() {
        let _step = Step::begin();
        let large = layout(3 * LARGE, 8);
        // SAFETY: blocks of one layout, each given back once, written within their size.
        unsafe {
            let used = Reuse.alloc(large);
            used.write_bytes(7, large.size());
            Reuse.dealloc(used, large);
            let zeros = Reuse.alloc_zeroed(large);
            assert_eq!(zeros, used);
            let bytes = std::slice::from_raw_parts(zeros, large.size());
            assert!(bytes.iter().all(|byte| *byte == 0));
            Reuse.dealloc(zeros, large);
        }
    }

    #[test]
    fn what_other_threads_free_and_what_is_small_is_not_kept() {
        let _step = Step::begin();
        let (large, small) = (layout(LARGE, 8), layout(LARGE - 1, 8));
        // SAFETY: blocks given back once, with their layout.
        unsafe {
            let address = Reuse.alloc(large) as usize;
            std::thread::spawn(move || Reuse.dealloc(address as *mut u8, large)).join().unwrap();
            Reuse.dealloc(Reuse.alloc(small), small);
        }
        assert_eq!(with_kept(|kept| kept.count), 0);
    }
}
