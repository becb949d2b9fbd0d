//! What users and devices meet, played with the real programs: one module per subject, all in one binary.
//!
//! `cargo test -p cake-tests --test scenarios survive::` runs the scenarios of one of them. Scenarios run beside each other
//! on as many threads as there are processors: one that measures this machine, or is long, is in the binary `slow`. All share
//! a process, so none may change its environment, its current directory or anything else that the others see: what a
//! program should find different is passed to that program.

mod apr;
mod calibrate;
mod capacity;
mod clients;
mod commands;
mod demo;
mod devices;
mod discovery;
mod docs;
mod errors;
mod everyday;
mod files;
mod gguf;
mod golden;
mod hostile;
mod household;
mod intruders;
mod kept;
mod kv;
mod links;
mod models;
mod page;
mod pull;
mod push;
mod real;
mod reasoning;
mod record;
mod relay;
mod serve;
mod service;
mod share;
mod split;
mod structured;
mod survive;
mod timing;
mod together;
mod traces;
mod trust;
mod weights;
mod wire;
