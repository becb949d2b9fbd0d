//! An allocator for programs that run a model: it keeps large blocks while a step runs.
//!
//! Every layer of a step asks for blocks of the same few sizes. Those that the C library takes
//! from the system one by one, page by page, cost a fifth of a prompt's time. Experts ask for other
//! sizes again and again, as rows are shared out among them: so that these do not pile up, an expert's
//! part is a step inside of the step. And whatever comes, a step says how much it may take of the
//! system, what it holds and what is kept together. [`scratch_bytes`] is made of the same number.
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

/// A step of this thread, or a part of one; when it ends, what was kept since it began goes back to the system.
pub(crate) struct Step {
    /// It ends on the thread that it began on.
    here: PhantomData<*const ()>,
}

impl Step {
    /// A step that takes no more than `limit` bytes of large blocks for what is kept: where it needs more, the oldest kept
    /// ones go back to the system first. Inside of another step, that one's limit holds.
    pub(crate) fn begin(limit: u64) -> Step {
        with_kept(|kept| kept.begin(limit));
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
        match taken(layout) {
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
            Some(block) => block,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match taken(layout) {
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
        if layout.size().max(size) >= LARGE {
            with_kept(|kept| kept.resize(layout.size(), size));
        }
        // SAFETY: the caller's promise, and the block is the system's.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// A block of that layout, if this thread keeps one; if not, the caller asks the system for it.
fn taken(layout: Layout) -> Option<*mut u8> {
    if layout.size() < LARGE { None } else { with_kept(|kept| kept.take(layout)) }
}

/// Blocks of the system's that nobody has.
struct Kept {
    /// Steps that run, one inside the other.
    steps: usize,
    /// Bytes that the outermost one may take.
    limit: i128,
    /// Bytes of large blocks that this thread took of the system in that step, less those that it gave back: the kept
    /// ones are among them. Below zero where it gives back what was there before.
    taken: i128,
    count: usize,
    /// The oldest first.
    blocks: [Block; MOST],
}

/// A block, and how many steps ran when it was freed.
#[derive(Clone, Copy)]
struct Block {
    at: *mut u8,
    layout: Layout,
    steps: usize,
}

impl Kept {
    const NEW: Kept = Kept {
        steps: 0,
        limit: 0,
        taken: 0,
        count: 0,
        blocks: [Block { at: null_mut(), layout: Layout::new::<u8>(), steps: 0 }; MOST],
    };

    fn begin(&mut self, limit: u64) {
        if self.steps == 0 {
            (self.limit, self.taken) = (i128::from(limit), 0);
        }
        self.steps += 1;
    }

    fn end(&mut self) {
        self.steps -= 1;
        let steps = self.steps;
        let ended = |block: &Block| block.steps > steps;
        while let Some(index) = self.blocks[..self.count].iter().position(ended) {
            self.give_back(index);
        }
    }

    /// A block of that layout; if there is none, the caller takes one of the system, for which there is room now.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let kept = &self.blocks[..self.count];
        match kept.iter().rposition(|block| block.layout == layout) {
            Some(found) => Some(self.remove(found).at),
            None => {
                self.resize(0, layout.size());
                None
            }
        }
    }

    /// Keeps a block; if it does not, which it returns, the caller gives the block to the system.
    fn put(&mut self, block: *mut u8, layout: Layout) -> bool {
        if self.steps == 0 || self.taken > self.limit {
            self.resize(layout.size(), 0);
            return false;
        }
        if self.count == MOST {
            self.give_back(0);
        }
        self.blocks[self.count] = Block { at: block, layout, steps: self.steps };
        self.count += 1;
        true
    }

    /// Notes that a block of the caller's gets another size, and makes room for what it takes more.
    fn resize(&mut self, from: usize, to: usize) {
        let large = |size: usize| if size < LARGE { 0 } else { size as i128 };
        let more = large(to) - large(from);
        while self.count > 0 && self.taken + more > self.limit {
            self.give_back(0);
        }
        self.taken += more;
    }

    fn give_back(&mut self, index: usize) {
        let Block { at, layout, .. } = self.remove(index);
        self.taken -= layout.size() as i128;
        // SAFETY: the block is the system's, of this layout, and nobody has it.
        unsafe { System.dealloc(at, layout) }
    }

    /// Takes out a block; the others stay in order.
    fn remove(&mut self, index: usize) -> Block {
        let removed = self.blocks[index];
        self.blocks.copy_within(index + 1..self.count, index);
        self.count -= 1;
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that no test reaches.
    const ROOM: u64 = 1 << 40;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// A block of the system's, to be kept.
    fn block(layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    #[test]
    fn blocks_come_back_to_requests_of_their_layout_until_the_step_ends_in_which_they_were_freed() {
        let (mut kept, large) = (Kept::NEW, layout(LARGE, 16));
        let first = block(large);
        assert!(!kept.put(first, large), "no step runs");
        kept.begin(ROOM);
        assert!(kept.put(first, large));
        assert_eq!(kept.take(layout(LARGE + 1, 16)), None);
        assert_eq!(kept.take(layout(LARGE, 32)), None);
        assert_eq!(kept.take(large), Some(first));
        assert_eq!(kept.take(large), None);
        assert!(kept.put(first, large));
        kept.begin(0);
        let (other, second) = (layout(2 * LARGE, 16), block(layout(2 * LARGE, 16)));
        assert!(kept.put(second, other));
        kept.end();
        assert_eq!(kept.count, 1, "a step runs still");
        assert_eq!(kept.take(other), None);
        kept.end();
        assert_eq!(kept.count, 0);
        assert_eq!(kept.take(large), None);
    }

    #[test]
    fn for_a_block_more_than_there_is_room_for_the_oldest_goes_back() {
        let (mut kept, oldest, large) = (Kept::NEW, layout(2 * LARGE, 16), layout(LARGE, 16));
        kept.begin(ROOM);
        assert!(kept.put(block(oldest), oldest));
        for _ in 0..MOST {
            assert!(kept.put(block(large), large));
        }
        assert_eq!(kept.count, MOST);
        assert_eq!(kept.take(oldest), None);
        kept.end();
    }

    #[test]
    fn what_is_held_and_what_is_kept_stay_below_the_limit_while_the_oldest_can_go_back() {
        let (mut kept, sizes) = (Kept::NEW, [LARGE, 2 * LARGE, 3 * LARGE]);
        let [one, two, three] = sizes.map(|size| layout(size, 16));
        kept.begin(4 * LARGE as u64);
        let put = |kept: &mut Kept, of: Layout| {
            assert_eq!(kept.take(of), None);
            assert!(kept.put(block(of), of));
        };
        put(&mut kept, one);
        put(&mut kept, two);
        assert_eq!((kept.count, kept.taken), (2, 3 * LARGE as i128));
        kept.resize(0, LARGE); // There is room for one more, which somebody has.
        assert_eq!((kept.count, kept.taken), (2, 4 * LARGE as i128));
        put(&mut kept, three);
        assert_eq!((kept.count, kept.taken), (1, 4 * LARGE as i128), "the two others went back");
        kept.resize(LARGE, 2 * LARGE); // Somebody's block grows.
        assert_eq!((kept.count, kept.taken), (0, 2 * LARGE as i128));
        kept.resize(0, 3 * LARGE);
        let more = block(one);
        assert!(!kept.put(more, one), "more is held than may be");
        // SAFETY: allocated above, not kept.
        unsafe { System.dealloc(more, one) };
        kept.end();
    }

    #[test]
    fn zeros_are_zeros_in_a_block_that_was_used() {
        let _step = Step::begin(ROOM);
        let large = layout(3 * LARGE, 8);
        // SAFETY: blocks of one layout, each given back once, written within their size.
        unsafe {
            let used = Reuse.alloc(large);
            used.write_bytes(7, large.size());
            Reuse.dealloc(used, large);
            let zeros = Reuse.alloc_zeroed(large);
            assert_eq!(zeros, used);
            let bytes = std::slice::from_raw_parts(zeros, large.size());
            // At once: byte by byte, Miri needs a minute.
            assert!(bytes == vec![0; large.size()], "all bytes are zeros");
            Reuse.dealloc(zeros, large);
        }
    }

    #[test]
    fn what_other_threads_free_and_what_is_small_is_not_kept() {
        let _step = Step::begin(ROOM);
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
