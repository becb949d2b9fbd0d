//! What the hand-over is made of. Its model checks have the same names of loom's, which tries every order in which
//! threads may take their turns and every value that a load may see.

pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Stands between a write and a read that are in one order for all threads, as both are sequentially consistent
/// already: nothing. Loom takes such accesses for less than they are, and has a fence here.
#[inline(always)]
pub(super) fn in_one_order() {}
