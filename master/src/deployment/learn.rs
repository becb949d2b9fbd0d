//! What is remembered of how fast devices really were.
use super::candidates::Seat;
use super::prepared::Prepared;
use super::rates::{ends_key, own, own_key, worker_key};
use crate::state::State;

impl Prepared {
    /// Remembers how long the stages of the plan, and the master's own part, really took for a generated token: the
    /// next plan knows it.
    pub(crate) fn learn(&self, stage_seconds: Option<&[f64]>, ends_seconds: Option<f64>) {
        let Self { model, state, device, threads, chosen, .. } = self;
        let stages = &chosen.plan.stages;
        let stage_seconds = stage_seconds.filter(|seconds| seconds.len() == stages.len());
        for (stage, seconds) in stages.iter().zip(stage_seconds.unwrap_or_default()) {
            let bytes: u64 = stage.layers.iter().map(|layer| model.active_bytes(layer)).sum();
            match chosen.seats.get(stage.device_index) {
                Some(Seat::Master) => {
                    learn_own(state, &own_key(model, *device, *threads), *seconds, bytes);
                }
                Some(seat @ Seat::Worker { .. }) => {
                    if let Some((member, device)) = seat.device(&self.members) {
                        state.ran(&worker_key(model, member, device), *seconds, bytes);
                    }
                }
                Some(Seat::Imagined) | None => {}
            }
        }
        if let Some(seconds) = ends_seconds {
            learn_own(state, &ends_key(model, *device, *threads), seconds, 1);
        }
    }
}

/// The master may run what it never timed.
fn learn_own(state: &State, key: &str, seconds: f64, bytes: u64) {
    if state.measured(key).is_none() {
        state.remember(key, own(seconds, bytes.max(1), false));
    }
    state.ran(key, seconds, bytes);
}
