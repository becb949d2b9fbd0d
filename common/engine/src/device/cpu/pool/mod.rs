//! Threads for the arithmetic: short sections of tasks, thousands of them in a second.
//!
//! A step of the model is a chain of sections, each some ten or hundred microseconds of work for
//! all threads, with a few microseconds of serial work between them. So helpers wait for the next
//! section awake, for a bounded time, and sleep between steps, when the processors belong to the
//! threads that move bytes. Nobody waits for a helper that has not begun: the caller takes part,
//! and a section is over when the tasks that were handed out are done. A thread that waits awake prefetches
//! what the next section reads ([`expect`]), so that memory never rests.

mod handover;
#[cfg(all(test, not(any(miri, target_arch = "aarch64"))))]
mod model;
pub(crate) mod processors;
mod stretches;
mod sync;
mod tasks;
mod threads;
mod upcoming;

pub(crate) use tasks::{PARALLEL_WORK, Tasks, run_all};
pub(crate) use threads::{Pool, current_threads, expect, for_each_mut};
