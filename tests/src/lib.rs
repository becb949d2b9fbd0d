//! The harness of the scenarios and benchmarks: real processes, a proxy that counts, made-up models.
//!
//! Start with [`TestWorker`] and [`Master`]; [`mod@golden`] has what the reference implementation
//! answers, [`mod@model`] writes checkpoints of any size.
//!
//! Invariants:
//! - Programs are the real binaries, run as a person would; what they do is counted from outside.
//! - Every wait has a deadline, and says what it waited for.
//! - A worker runs in a directory of its own and is never told where the checkpoint is.

use std::io::Write;

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
pub mod hub;
pub mod invitation;
pub mod liar;
pub mod master;
pub mod meddler;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod quality;
pub mod recorder;
pub mod reference;
pub mod server;
pub mod streams;
pub mod template;
pub mod wait;
pub mod weather;
pub mod worker;

pub use budget::budget_for;
pub use cake_models::{self as model, ModelShape};
pub use cgroup::Cgroup;
pub use cluster::Cluster;
pub use collector::Collector;
pub use far::Far;
pub use golden::{Golden, demo_model, golden};
pub use held::HeldBlobs;
pub use hosts::{Entered, Host, Lan};
pub use hub::{Hub, Manners};
pub use invitation::Invitation;
pub use liar::Liar;
pub use master::{Master, Placement};
pub use meddler::{Call, Lie, Meddler};
pub use process::{Finished, Running};
pub use programs::programs;
pub use proxy::CountingProxy;
pub use server::{Reply, Server};
pub use wait::until;
pub use weather::{Link, Weather};
pub use worker::{TestWorker, WorkerOptions, dial};

/// Says that the present test, or a part of it, could not run here, and why: a line `NOT SHOWN: NAME: WHY`, of which
/// `tests/not-shown.sh` makes a failure unless `tests/not-shown.txt` has the name. The scenario returns after it.
pub fn not_shown(why: impl std::fmt::Display) {
    let thread = std::thread::current(); // The library of tests calls a test's thread as the test.
    not_shown_of(thread.name().filter(|name| *name != "main").unwrap_or("some test"), why);
}

/// The same of a part of a test, by a name of its own, which has no colon that a space follows.
pub fn not_shown_of(name: &str, why: impl std::fmt::Display) {
    let why = why.to_string();
    let why = why.lines().next().unwrap_or_default();
    // Not by `eprintln!`, whose output is captured where the test passes.
    // And in one piece, so that nothing of another test's comes between.
    std::io::stderr().write_all(format!("NOT SHOWN: {name}: {why}\n").as_bytes()).ok();
}
