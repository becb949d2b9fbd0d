//! Turns of our programs beside those of others: alone and over two pinned workers, in several ways to compute.
use anyhow::Result;
use cake_tests::ModelShape;

use super::cluster::Ask;
use super::engine::{alone, over_workers_cut};
use super::lab::Lab;
use super::peers::Rates;
use super::quiet::undisturbed;
use super::rates::median;

/// Threads of who computes alone.
const THREADS: usize = 2;

/// How the engine computes, as `--numerics` names it.
pub(super) const NUMERICS: [&str; 2] = ["fast", "int8"];

/// What one of them gave: the memory's rate at that time, alone, and over workers.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) memory: Vec<f64>,
    pub(super) alone: Vec<Rates>,
    pub(super) over: Vec<Rates>,
}

impl Turns {
    /// One more of each.
    pub(super) fn take(&mut self, lab: &Lab, ask: &Ask, shape: &ModelShape) -> Result<()> {
        let (rate, turn) = undisturbed(THREADS, || alone(ask))?;
        self.memory.push(rate);
        self.alone.push(turn);
        self.over.push(over_workers_cut(lab, ask, shape.layers / 2, shape)?);
        Ok(())
    }

    /// The part of the memory's rate at which a token reads so many bytes.
    pub(super) fn part(&self, bytes: f64) -> f64 {
        let turns = self.memory.iter().zip(&self.alone);
        median(turns.map(|(memory, ours)| ours.decode * bytes / memory).collect())
    }
}
