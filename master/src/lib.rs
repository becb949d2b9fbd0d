//! The master: plans which device holds which layers, pushes the blobs, drives the pipeline, talks to people.
//!
//! Start with [`cli`] for what it can be asked, then follow a run: [`deployment`] (from a model and workers to a
//! pipeline, and what keeps it going), [`cluster`] (who is there, what they
//! offer), [`sizing`] (numbers for the planner), [`planner`] (pure), [`distributor`] (blobs to workers),
//! [`place`] (where the master's own weights lie), [`pipeline`] (steps through the stages), [`generate`]
//! (tokens), [`text`] (words). A service goes on with [`scheduler`] (many sequences), [`metrics`] (what it
//! counts), [`monitor`] (what it shows), [`shelf`] (the models at hand) and [`api`] (HTTP).
//!
//! Invariants:
//! - The planner is a pure function: numbers in, plan or refusal out.
//! - The master alone allocates KV blocks; a stage only indexes its pool with them.
//! - Tensor bytes are streamed in pieces of 1 MiB, never held whole: memory does not grow with the model.
//! - Sampling is a pure function of seed, position and token ids.
//! - The worker crate is used for the hidden `worker` subcommand that the demo starts, and for nothing else.

pub mod api;
mod aside;
pub mod board;
pub mod calibration;
pub mod chronicle;
pub mod chunk;
pub mod cli;
pub mod cluster;
pub mod deployment;
pub mod distributor;
pub mod generate;
pub mod grammar;
pub mod invitation;
pub mod membership;
pub mod metrics;
pub mod model;
pub mod monitor;
pub mod pace;
pub mod pipeline;
pub mod place;
pub mod planner;
pub mod present;
mod reply;
pub mod request_id;
pub mod roll;
pub mod running;
pub mod scheduler;
mod service;
pub mod shelf;
pub mod sightings;
pub mod sign;
pub mod sizing;
pub mod state;
pub mod text;
pub mod wonder;
