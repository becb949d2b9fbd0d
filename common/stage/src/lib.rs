//! What master and worker both run: a stage's steps, and the memory that a stage takes.
//!
//! Start with [`StepEngine`] (one [`Job`] after the other through a loaded stage, and why a result is not sent on), then
//! [`stage_scratch_bytes`] (what the master's planner counts and a worker checks before it loads).
//! [`Ledger`] is who takes how much of a device that several stages share. [`recall_tuning`] is for the start of a program.
//!
//! Invariants:
//! - A stage computes the same bits whoever runs it: neither program has arithmetic or a memory model of its own.
//! - A stage computes with no number that is not finite and sends none. One that made some, or whose weights were
//!   damaged, computes nothing more.
//! - No network, no store, no threads: whoever holds a stage says where it runs, and where its results go.

mod ledger;
mod memory;
mod step;
mod tuning;

pub use ledger::{Account, Lacks, Ledger, Share, memory_of};
pub use memory::{OVERHEAD_BYTES, ResidentCosts, stage_scratch_bytes};
pub use step::{Job, StepEngine, StepError};
pub use tuning::{keep_tuning, recall_tuning};
