//! What takes 20 seconds and more, and what measures this machine: `cargo test -p cake-tests --test slow`.
//!
//! A test here begins with how it shares the machine: [`beside_others`], or [`alone`] where it believes what it times or
//! keeps all processors busy.

mod chaos;
mod fuzz;
mod perplexity;
mod predictions;
mod soak;
mod unequal;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// The machine for a test that others may run beside, until the result is dropped.
fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The machine for a test that needs it for itself, until the result is dropped.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}
