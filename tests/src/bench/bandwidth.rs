//! How fast this machine reads memory: what decoding cannot be faster than.
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes read by all threads together, far more than any cache.
const BYTES: usize = 2 << 30;
const HUGE_PAGE: usize = 2 << 20;
const REPETITIONS: usize = 7;
/// As many as fit into the registers that every x86-64 has: more go through memory, which was measured
/// to halve what is read.
const SUMS: usize = 16;

/// Bytes per second that `threads` threads read together, the median of some passes over memory in
/// huge pages where the system gives them (or in small ones if not `huge`).
///
/// # Errors
/// If the system refuses the memory.
pub(crate) fn read_bandwidth(threads: usize, huge: bool) -> Result<f64> {
    ensure!(threads > 0, "no thread reads nothing");
    let memory = Memory::new(BYTES + HUGE_PAGE, huge)?;
    let words = memory.words();
    let share = words.len() / threads;
    let mut seconds = Vec::new();
    for _ in 0..REPETITIONS {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks_exact(share).take(threads) {
                scope.spawn(move || std::hint::black_box(read(part)));
            }
        });
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok((share * threads * size_of::<u64>()) as f64 / seconds[REPETITIONS / 2])
}

/// Reads every word; the sums keep the compiler from leaving one out.
fn read(words: &[u64]) -> u64 {
    let mut sums = [0u64; SUMS];
    for chunk in words.as_chunks::<SUMS>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum ^= word;
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

/// Anonymous memory, every page there.
struct Memory {
    start: *mut std::ffi::c_void,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, huge: bool) -> Result<Memory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the system chooses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)? };
        let memory = Memory { start, bytes };
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the mapping made above; these two kinds of advice change no content.
        unsafe { madvise(start, bytes, advice).ok() }; // A hint: without it there are small pages.
        // SAFETY: the mapping is writable and this long, and nobody else knows it.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes) }.fill(1);
        Ok(memory)
    }

    fn words(&self) -> &[u64] {
        // SAFETY: the mapping is this long, written once, aligned to a page.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<u64>()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no slice of it outlives `self`.
        unsafe { munmap(self.start, self.bytes).ok() };
    }
}
