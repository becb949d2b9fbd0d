//! The harness of the scenarios and benchmarks: real processes, a proxy that counts, made-up models.
//!
//! Start with [`TestWorker`] and [`Master`]; [`mod@golden`] has what the reference implementation
//! answers, [`mod@model`] writes checkpoints of any size.
//!
//! Invariants:
//! - Programs are the real binaries, run as a person would; what they do is counted from outside.
//! - Every wait has a deadline, and says what it waited for.
//! - A worker runs in a directory of its own and is never told where the checkpoint is.

mod acceptor;
pub mod browser;
pub mod budget;
pub mod cgroup;
pub mod cluster;
pub mod collector;
pub mod far;
pub mod fuzz;
pub mod golden;
mod held;
pub mod hosts;
pub mod invitation;
pub mod liar;
pub mod master;
pub mod meddler;
pub mod model;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod recorder;
pub mod server;
pub mod streams;
pub mod template;
pub mod wait;
pub mod weather;
pub mod worker;

pub use budget::budget_for;
pub use cgroup::Cgroup;
pub use cluster::Cluster;
pub use collector::Collector;
pub use far::Far;
pub use golden::{Golden, golden};
pub use held::HeldBlobs;
pub use hosts::{Entered, Host, Lan};
pub use invitation::Invitation;
pub use liar::Liar;
pub use master::{Master, Placement};
pub use meddler::{Lie, Meddler};
pub use model::ModelShape;
pub use process::{Finished, Running};
pub use programs::programs;
pub use proxy::CountingProxy;
pub use server::{Reply, Server};
pub use wait::until;
pub use weather::{Link, Weather};
pub use worker::{TestWorker, WorkerOptions, dial};

/// Says that a check could not run here, and why. The scenario returns after it.
pub fn not_shown(why: impl std::fmt::Display) {
    eprintln!("NOT SHOWN: {why}");
}

/// The same for want of a program that can be installed.
///
/// # Panics
/// If `CAKE_SHOW_ALL` is set, as where nothing may be skipped.
#[track_caller]
pub fn not_shown_here(why: impl std::fmt::Display) {
    assert!(std::env::var_os("CAKE_SHOW_ALL").is_none(), "must be shown, but {why}");
    not_shown(why);
}
