//! A model over workers: who could hold layers, which plan is taken, its blobs to where they are missing, the pipeline,
//! and how a service goes on when workers come and go.
//!
//! Start with `request` (what is asked of a plan) and `prepare` (from a model and workers to a plan), which asks
//! `candidates` (who could hold layers) for their `rates` (how fast they are) and takes a `choice`. What comes of it is
//! `prepared`: `push` brings its blobs, `open` begins what was planned, `learn` remembers how fast it was. A service has
//! a `keeper`, which plans again (`replan`) and knows how members behaved (`trust`). `door` lets workers in.
//!
//! Invariants:
//! - Nothing here reads a command line or writes to a terminal: who asks hands in a `PlanRequest`, and an `Observer` is
//!   told what happens (`event`, `facts`).
//! - A plan is made by the planner alone; here are the numbers that it is given, and what is done with its answer.

mod candidates;
mod choice;
pub(crate) mod door;
mod error;
pub(crate) mod event;
pub(crate) mod facts;
pub(crate) mod fits;
mod hollow;
pub(crate) mod keeper;
mod learn;
mod open;
mod parts;
mod prepare;
mod prepared;
mod push;
mod rates;
mod replan;
mod request;
pub(crate) mod trust;
mod weighing;
pub(crate) mod widths;

pub use error::{Error, WrongArgument};
pub(crate) use hollow::is_hollow;
pub(crate) use prepare::prepare;
pub(crate) use prepared::{Prepared, master_name};
pub(crate) use request::{Encode, PlanRequest};
pub(crate) use weighing::{reading, weigh};
