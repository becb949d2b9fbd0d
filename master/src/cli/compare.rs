//! `cake-master compare`: does every device compute what this machine computes?
use std::collections::HashMap;
use std::sync::Arc;

use cake_checkpoint::LayerRange;
use cake_engine::{BLOCK_POSITIONS, Numerics, Stage};
use serde::Serialize;
use tokio::task::block_in_place;

use super::args::{ClusterArgs, MODEL, PlanArgs};
use super::out::{self, Tell};
use super::told::Words;
use super::{Error, announce, report};
use crate::cluster::Member;
use crate::deployment::{PlanRequest, Prepared, prepare};
use crate::pipeline::{self, Opening, Pipeline, StageSpec};
use crate::planner::PlannedStage;
use crate::state::State;
use cake_proto::{StateSlots, StepItem};

/// Rows of the probe: enough that positions and attention count.
const ROWS: usize = 16;

/// Arguments of `compare`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Comparison")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    /// Largest difference that is let pass, relative to the largest number of a layer's output.
    #[arg(long, value_name = "RATIO", default_value_t = 1e-3)]
    tolerance: f64,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// What was found of a device.
#[derive(Debug, Serialize)]
struct Verdict {
    worker: String,
    layers: LayerRange,
    /// Largest difference of its output, relative to the largest number; none if there was something else.
    difference: Option<f64>,
    ok: bool,
    /// The first of its layers that differs by itself, and by how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_difference: Option<f64>,
}

impl Args {
    /// Pushes what is missing, feeds a probe to every device's layers and, layer by layer, to the same
    /// here, and tells who differs. Both sides use exact numerics.
    pub(super) async fn run(self) -> Result<(), Error> {
        if self.tolerance.is_nan() || self.tolerance < 0.0 {
            let expected = "a number that is not negative";
            return Err(Error::argument("--tolerance", self.tolerance, expected));
        }
        let (cluster, _door) = self.cluster.whereabouts().await?;
        if cluster.addresses().is_empty() {
            return Err(self.cluster.nobody("compare", &cluster));
        }
        let plan = PlanArgs { numerics: Numerics::Exact, ..self.plan };
        let request: PlanRequest = plan.try_into()?;
        let told = Arc::new(Words::unless(self.json));
        let prepared = prepare(State::open()?, &self.model, &cluster, &request, told).await?;
        let tell = if self.json { Tell::Nobody } else { Tell::Notes };
        announce::announce_and_push(&prepared, tell).await?;
        let mut verdicts = Vec::new();
        let mut hidden = prepared.probe();
        let mut next = 0;
        for (stage, member) in prepared.remotes() {
            // Layers between two workers' are the master's own.
            hidden = prepared.here(hidden, LayerRange::new(next, stage.layers.start)).await?;
            let verdict = prepared.verify(stage, member, &hidden, self.tolerance).await?;
            if !self.json {
                out::line(verdict.text())?;
            }
            verdicts.push(verdict);
            hidden = prepared.here(hidden, stage.layers).await?;
            next = stage.layers.end;
        }
        prepared.release().await;
        if verdicts.is_empty() {
            let why = "no worker has layers in this plan; --place NAME=A..B gives some to one";
            return Err(Error::NoWorkers { action: "compare", why: why.to_owned() });
        }
        if self.json {
            report::print_json(&verdicts)?;
        }
        match verdicts.iter().find(|verdict| !verdict.ok) {
            None => Ok(()),
            Some(Verdict { worker, layer, .. }) => {
                Err(Error::Differs { worker: worker.clone(), layer: *layer })
            }
        }
    }
}

impl Verdict {
    /// A line for people.
    fn text(&self) -> String {
        let mark = if self.ok { "ok  " } else { "FAIL" };
        let of = |difference: Option<f64>| {
            difference.map_or("is not a number".to_owned(), |by| format!("differs by {by:.1e}"))
        };
        let layer = self.layer.map_or(String::new(), |layer| {
            format!(
                "; the first layer that differs by itself is {layer}: {}",
                of(self.layer_difference)
            )
        });
        format!("{mark} {} {} {}{layer}", self.worker, self.layers, of(self.difference))
    }
}

impl Prepared {
    /// Rows as the first layer takes them, to begin with: numbers of the size that embeddings have, the same ones every
    /// time.
    fn probe(&self) -> Vec<f32> {
        let values = ROWS * self.model.checkpoint.config.row_width(0);
        (0..values).map(|at| ((at * 37 % 255) as f32 - 127.0) / 1024.0).collect()
    }

    /// What these layers make of `hidden` on this machine, one after the other, as far as they can be apart.
    async fn here(&self, mut hidden: Vec<f32>, layers: LayerRange) -> Result<Vec<f32>, Error> {
        let config = &self.model.checkpoint.config;
        for layers in config.pieces(layers) {
            let mut weights: HashMap<_, _> = HashMap::new();
            for layer in layers.iter() {
                weights.extend(block_in_place(|| self.model.mapped_layer(layer))?);
            }
            let find = |name: &str| weights.get(name).cloned();
            let stage = Stage::load(config, layers, &find, &self.engine_options())?;
            let pipeline = self.part(Some((stage, layers)), Vec::new()).await?;
            hidden = answer(&pipeline, hidden).await?;
        }
        Ok(hidden)
    }

    /// What some layers of a worker's `stage` make of `hidden`.
    async fn there(
        &self,
        (stage, member): (&PlannedStage, &Member),
        layers: LayerRange,
        hidden: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let mut blobs = Vec::new();
        for layer in layers.iter() {
            blobs.push(self.manifests.get(layer).await?.name());
        }
        let (device, planned_bytes) = (self.device_name(stage), stage.memory.total());
        let (hop_seconds, relay) = (0.0, false);
        let spec = StageSpec { member, device, layers, blobs, planned_bytes, hop_seconds, relay };
        let pipeline = self.part(None, vec![spec]).await?;
        answer(&pipeline, hidden).await
    }

    async fn part(
        &self,
        local: Option<(Stage, LayerRange)>,
        remotes: Vec<StageSpec<'_>>,
    ) -> Result<Pipeline, Error> {
        Ok(pipeline::open(Opening {
            generation: self.state.next_generation()?,
            model: &self.model.checkpoint.config,
            promise: *self.promise(),
            step_seconds: self.plan().step_seconds,
            local,
            remotes,
        })
        .await?)
    }

    /// Compares a stage with the same layers here; if they differ, each layer by itself, or with those that it cannot be
    /// apart from.
    async fn verify(
        &self,
        stage: &PlannedStage,
        member: &Member,
        hidden: &[f32],
        tolerance: f64,
    ) -> Result<Verdict, Error> {
        let there = self.there((stage, member), stage.layers, hidden.to_vec()).await?;
        let here = self.here(hidden.to_vec(), stage.layers).await?;
        let difference = relative(&there, &here);
        let mut verdict = Verdict {
            worker: member.name().to_owned(),
            layers: stage.layers,
            difference,
            ok: difference.is_some_and(|by| by <= tolerance),
            layer: None,
            layer_difference: None,
        };
        let mut hidden = hidden.to_vec();
        let pieces = self.model.checkpoint.config.pieces(stage.layers);
        for one in pieces.into_iter().take_while(|_| !verdict.ok) {
            let there = self.there((stage, member), one, hidden.clone()).await?;
            hidden = self.here(hidden, one).await?;
            let difference = relative(&there, &hidden);
            if difference.is_none_or(|by| by > tolerance) {
                (verdict.layer, verdict.layer_difference) = (Some(one.start), difference);
                break;
            }
        }
        Ok(verdict)
    }
}

/// The answer to one step of the probe.
async fn answer(pipeline: &Pipeline, hidden: Vec<f32>) -> Result<Vec<f32>, Error> {
    let state = Some(StateSlots { from: None, to: 0 }); // Where no layer has one, nobody looks.
    let blocks = (0..ROWS.div_ceil(BLOCK_POSITIONS) as u32).collect();
    let (sequence, position, rows, prompt) = (1, 0, ROWS, true);
    let item = StepItem { sequence, position, rows, blocks, prompt, known: 0, state, trace: None };
    let wanted = (0..ROWS as u32).collect();
    let lost = crate::generate::Error::from;
    let ticket = pipeline.submit(vec![item], hidden, wanted).await.map_err(lost)?;
    Ok(ticket.answer().await.map_err(lost)?.hidden)
}

/// Largest difference ÷ largest number of `expected`; none if there is a value that is not a number.
fn relative(found: &[f32], expected: &[f32]) -> Option<f64> {
    if found.len() != expected.len() {
        return None;
    }
    let largest = expected.iter().fold(0f64, |most, value| most.max(f64::from(value.abs())));
    let mut most = 0f64;
    for (found, expected) in found.iter().zip(expected) {
        let by = (f64::from(*found) - f64::from(*expected)).abs();
        if !by.is_finite() {
            return None;
        }
        most = most.max(by);
    }
    Some(most / largest.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_and_what_is_no_number_is_none() {
        assert_eq!(relative(&[1.0, -4.0], &[1.0, -4.0]), Some(0.0));
        assert_eq!(relative(&[1.0, -3.0], &[1.0, -4.0]), Some(0.25));
        assert_eq!(relative(&[f32::NAN, 0.0], &[0.0, 0.0]), None);
        assert_eq!(relative(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(relative(&[0.0], &[0.0]), Some(0.0));
    }
}
