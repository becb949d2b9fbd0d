//! An allocator for programs that run a model: it keeps large blocks while a step runs.
//!
//! Every layer of a step asks for blocks of the same few sizes. Those of a megabyte and more come from
//! the system one by one, page by page, and go back to it: that took a fifth of a prompt's time.
//! [`scratch_bytes`](crate::scratch_bytes) counts what is kept.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes from which on blocks are kept: what the system's allocator has no room for of its own.
const LARGE: usize = 128 << 10;
/// Most blocks that are kept; a layer has some twenty.
const MOST: usize = 64;

/// The system's allocator, but for large blocks that are freed while a step runs: those are kept for
/// requests of the same size, until no step runs any more.
pub struct Reuse;

/// Steps that run.
static STEPS: AtomicUsize = AtomicUsize::new(0);
static KEPT: Kept = Kept::new();

/// A step that runs; when the last one ends, what was kept goes back to the system.
pub(crate) struct Step(());

impl Step {
    pub(crate) fn begin() -> Step {
        STEPS.fetch_add(1, Ordering::Relaxed);
        Step(())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if STEPS.fetch_sub(1, Ordering::Relaxed) == 1 {
            KEPT.release();
        }
    }
}

// SAFETY: every block is one of the system's, of the layout asked for: kept ones are given to requests
// of the layout they were made for.
unsafe impl GlobalAlloc for Reuse {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match KEPT.take(layout) {
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
            Some(block) => block,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match KEPT.take(layout) {
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
        if !KEPT.put(block, layout) {
            // SAFETY: the caller's promise, and the block is the system's.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, and the block is the system's.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Blocks that nobody has.
struct Kept {
    /// Whether somebody looks at `slots`: nobody waits for it, the system has blocks too.
    busy: AtomicBool,
    slots: std::cell::UnsafeCell<Slots>,
}

// SAFETY: `slots` is touched in `with` alone, by one thread at a time.
unsafe impl Sync for Kept {}

struct Slots {
    count: usize,
    blocks: [(*mut u8, Layout); MOST],
}

impl Kept {
    const fn new() -> Kept {
        let none = (null_mut(), Layout::new::<u8>());
        let slots = Slots { count: 0, blocks: [none; MOST] };
        Kept { busy: AtomicBool::new(false), slots: std::cell::UnsafeCell::new(slots) }
    }

    /// Calls `work` if no other thread does so now; it must not allocate.
    fn with<R>(&self, work: impl FnOnce(&mut Slots) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was false, so no other thread is here.
        let result = work(unsafe { &mut *self.slots.get() });
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// A block of that layout.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() < LARGE {
            return None;
        }
        self.with(|slots| {
            let held = &mut slots.blocks[..slots.count];
            let found = held.iter().rposition(|(_, of)| *of == layout)?;
            let (block, _) = held[found];
            held.swap(found, held.len() - 1);
            slots.count -= 1;
            Some(block)
        })?
    }

    /// Keeps a block; returns whether it did.
    fn put(&self, block: *mut u8, layout: Layout) -> bool {
        if layout.size() < LARGE || STEPS.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let put = |slots: &mut Slots| {
            let Some(slot) = slots.blocks.get_mut(slots.count) else { return false };
            *slot = (block, layout);
            slots.count += 1;
            true
        };
        self.with(put).unwrap_or(false)
    }

    /// Gives everything back.
    fn release(&self) {
        let next = |slots: &mut Slots| {
            slots.count = slots.count.checked_sub(1)?;
            Some(slots.blocks[slots.count])
        };
        loop {
            match self.with(next) {
                // SAFETY: the block is the system's, of this layout, and nobody has it.
                Some(Some((block, layout))) => unsafe { System.dealloc(block, layout) },
                Some(None) => break,
                None => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of the system's, to be kept or given back.
    fn block(layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    #[test]
    fn large_blocks_come_back_to_requests_of_their_layout_while_a_step_runs() {
        let large = Layout::from_size_align(LARGE, 16).unwrap();
        let larger = Layout::from_size_align(LARGE + 1, 16).unwrap();
        let kept = Kept::new();
        let first = block(large);
        {
            let _step = Step::begin();
            assert!(kept.put(first, large));
            assert_eq!(kept.take(larger), None);
            assert_eq!(kept.take(Layout::from_size_align(LARGE, 32).unwrap()), None);
            assert_eq!(kept.take(large), Some(first));
            assert_eq!(kept.take(large), None);
            let small = Layout::from_size_align(LARGE - 1, 16).unwrap();
            let little = block(small);
            assert!(!kept.put(little, small));
            // SAFETY: allocated above, not kept.
            unsafe { System.dealloc(little, small) };
            assert!(kept.put(first, large));
        }
        kept.release();
        assert_eq!(kept.take(large), None);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let layout = Layout::from_size_align(LARGE, 16).unwrap();
        let (kept, _step) = (Kept::new(), Step::begin());
        for _ in 0..MOST {
            assert!(kept.put(block(layout), layout));
        }
        let last = block(layout);
        assert!(!kept.put(last, layout));
        // SAFETY: allocated above, not kept.
        unsafe { System.dealloc(last, layout) };
        kept.release();
    }

    #[test]
    fn zeros_are_zeros_in_a_block_that_was_used() {
        let layout = Layout::from_size_align(3 * LARGE, 8).unwrap();
        let _step = Step::begin();
        // SAFETY: blocks of one layout, each given back once, written within their size.
        unsafe {
            let used = Reuse.alloc(layout);
            used.write_bytes(7, layout.size());
            Reuse.dealloc(used, layout);
            let zeros = Reuse.alloc_zeroed(layout);
            let bytes = std::slice::from_raw_parts(zeros, layout.size());
            assert!(bytes.iter().all(|byte| *byte == 0));
            Reuse.dealloc(zeros, layout);
        }
    }
}
