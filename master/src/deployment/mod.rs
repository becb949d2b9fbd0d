//! A model over workers: who could hold layers, which plan is taken, its blobs to where they are missing, the pipeline,
//! and how a service goes on when workers come and go.
//!
//! Start with `prepare` (from a model and workers to a plan), which asks `candidates` (who could hold layers) with their
//! `rates` (how fast they are) and takes a `choice`. `open` begins what was planned. A service has a `keeper`, which
//! plans again (`replan`) and knows how members behaved (`trust`). `door` lets workers in.

pub(crate) mod candidates;
pub(crate) mod choice;
pub(crate) mod door;
pub(crate) mod keeper;
pub(crate) mod open;
pub(crate) mod prepare;
pub(crate) mod rates;
pub(crate) mod replan;
pub(crate) mod trust;
