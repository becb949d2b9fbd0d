//! From arguments to a plan, and its blobs to the workers: what every command shares. What runs then is begun in
//! `start`.
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use cake_checkpoint::Checkpoint;
use cake_checkpoint::units::format_bytes;
use serde::Serialize;
use tokio::task::block_in_place;

use super::candidates::Seat;
use super::choice::{Chosen, With};
use super::rates::Probing;
use crate::chunk::Chunk;
use crate::cli::args::PlanArgs;
use crate::cli::out::{self, Tell};
use crate::cli::{Error, report, show};
use crate::cluster::{self, Held, Member, Missing, Whereabouts};
use crate::distributor::{self, Assignment, Manifests, Progress, Pushed, WorkerProgress};
use crate::model::Model;
use crate::monitor::{Device, DeviceState, Monitor, Planned};
use crate::place::OwnWeights;
use crate::planner::{Plan, PlannedStage};
use crate::sizing::{self, OwnMemory, Promise};
use crate::state::State;

/// A checkpoint, the workers held for it, and the plan.
pub(crate) struct Prepared {
    /// The model.
    pub model: Model,
    pub(crate) chosen: Chosen,
    /// Whether there were no workers from the start.
    pub(crate) alone: bool,
    pub(crate) members: Vec<Member>,
    pub(crate) manifests: Arc<Manifests>,
    pub(crate) state: State,
    pub(crate) threads: usize,
    pub(crate) own_weights: OwnWeights,
    /// Members that joined and are not used, each with why.
    pub(crate) missing: Vec<String>,
    /// What people should know before it goes on, until it has been told.
    notes: Mutex<Vec<String>>,
    /// Ways between two processes of workers that let nothing through, by their instances: from, to.
    pub(crate) cut: HashSet<(String, String)>,
    /// Who wants to know of pushes.
    pub monitor: Option<Arc<Monitor>>,
}

/// How a push went, for reports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PushReport {
    /// One for each worker of the plan.
    pub workers: Vec<Pushed>,
    /// Blob bytes sent.
    pub pushed_bytes: u64,
    /// Blob bytes that were there already.
    pub reused_bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

impl PushReport {
    /// Counts a second push, of blobs that the first one took for whole.
    pub(crate) fn repair(&mut self, second: &Self) {
        self.pushed_bytes += second.pushed_bytes;
        self.reused_bytes = self.reused_bytes.saturating_sub(second.pushed_bytes);
        self.seconds += second.seconds;
        for (worker, again) in self.workers.iter_mut().zip(&second.workers) {
            worker.pushed_bytes += again.pushed_bytes;
            worker.reused_bytes = worker.reused_bytes.saturating_sub(again.pushed_bytes);
        }
    }
}

/// Opens the model, takes the workers, measures them and plans. `state` is where the master
/// remembers digests and measurements.
pub(crate) async fn prepare(
    state: State,
    model: &str,
    cluster: &Whereabouts,
    args: &PlanArgs,
    what_if: &[(String, u64)],
) -> Result<Prepared, Error> {
    let checkpoint = Arc::new(block_in_place(|| Checkpoint::open(model))?);
    warn(&checkpoint.warnings);
    let promise = args.promise(&checkpoint)?;
    let Held { members, missing } = cluster.hold(&master_name()).await?;
    let (args, missing) = with_whom(args, &members, missing, what_if)?;
    let notes = notes(cluster, &members, &missing, &args, what_if);
    let missing: Vec<String> = missing.iter().map(Missing::to_string).collect();
    let threads = cake_engine::default_threads();
    let (widest, narrower) = args.encode.tried().split_first().expect("a choice is never empty");
    let mut encoding = *widest;
    let mut narrower = narrower.iter();
    loop {
        let model = Model { checkpoint: checkpoint.clone(), encoding };
        let manifests = Arc::new(Manifests::open(model.clone(), state.digests()?)?);
        let with = With {
            model: &model,
            manifests: &manifests,
            state: &state,
            threads,
            slack: 0.0,
            probing: Probing::asked(&args),
        };
        let chosen = match (with.plan(&members, &args, promise, what_if).await, narrower.next()) {
            (Err(Error::Plan(_)), Some(next)) => {
                encoding = *next;
                continue;
            }
            (Err(Error::Plan(refusal)), None) if !missing.is_empty() => {
                return Err(Error::PlanWithout { refusal, missing });
            }
            (chosen, _) => chosen?,
        };
        let own_weights = OwnWeights::new(args.weights, args.lock_memory);
        let prepared = Prepared {
            model,
            chosen,
            alone: members.is_empty(),
            members,
            manifests,
            state,
            threads,
            own_weights,
            missing,
            notes: Mutex::new(notes),
            cut: HashSet::new(),
            monitor: None,
        };
        warn(prepared.own_shortfall().as_slice());
        return Ok(prepared);
    }
}

/// What is asked of the plan and who is missing from it, those that are to be left out anyway aside.
///
/// # Errors
/// Nobody is there, though some joined, and nobody asked the master to take their part.
fn with_whom(
    args: &PlanArgs,
    members: &[Member],
    mut missing: Vec<Missing>,
    what_if: &[(String, u64)],
) -> Result<(PlanArgs, Vec<Missing>), Error> {
    let nobody = members.is_empty() && !missing.is_empty();
    if nobody && what_if.is_empty() && args.local_memory.unwrap_or(0) == 0 {
        return Err(cluster::Error::NobodyThere(missing).into());
    }
    let mut args = args.clone();
    let is_there = |name: &str| members.iter().any(|member| member.name() == name);
    let (excluded, kept): (Vec<_>, Vec<_>) = args
        .exclude
        .into_iter()
        .partition(|name| !is_there(name) && missing.iter().any(|one| one.name == *name));
    args.exclude = kept;
    missing.retain(|one| !excluded.contains(&one.name));
    Ok((args, missing))
}

/// What people should know of whom the plan is made for.
fn notes(
    cluster: &Whereabouts,
    members: &[Member],
    missing: &[Missing],
    args: &PlanArgs,
    what_if: &[(String, u64)],
) -> Vec<String> {
    let mut notes: Vec<String> =
        missing.iter().map(|missing| format!("going on without {missing}")).collect();
    let asked = cluster.is_alone() || args.local_memory.is_some() || !what_if.is_empty();
    if members.is_empty() && missing.is_empty() && !asked {
        let more = match cluster.membership.authority() {
            Some(_) => "`cake-master token` lets a worker in",
            None => "`cake-master init` makes a cluster",
        };
        notes.push(format!(
            "there are no workers, so this machine computes everything: {more}, --alone is the same \
             without this note"
        ));
    }
    notes
}

/// Tells people what is not as it should be but does not stop anything.
pub(crate) fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| out::note(format_args!("warning: {warning}")));
}

impl Prepared {
    /// What was promised.
    pub(crate) fn promise(&self) -> &Promise {
        &self.chosen.promise
    }

    /// How prompts are cut into steps.
    pub(crate) fn chunk(&self) -> Chunk {
        self.chosen.chunk
    }

    /// The plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.chosen.plan
    }

    /// Takes workers that came back. May be dropped at any time.
    pub(crate) async fn rejoin(&mut self, cluster: &Whereabouts) {
        let (membership, places) = (&cluster.membership, cluster.places());
        cluster::rejoin(&mut self.members, membership, &places, &master_name()).await;
    }

    /// The stages that workers run, in chain order. A stage is a worker's by its place among the
    /// candidates, whatever its name.
    pub(crate) fn remotes(&self) -> Vec<(&PlannedStage, &Member)> {
        self.remotes_of(&self.chosen)
    }

    /// The same of another plan.
    fn remotes_of<'a>(&'a self, chosen: &'a Chosen) -> Vec<(&'a PlannedStage, &'a Member)> {
        let stages = chosen.plan.stages.iter();
        let remote = |stage: &'a PlannedStage| match chosen.seats.get(stage.device_index)? {
            Seat::Worker(index) => self.members.get(*index),
            Seat::Master | Seat::Imagined => None,
        };
        stages.filter_map(|stage| Some((stage, remote(stage)?))).collect()
    }

    /// Whether a worker that does not exist has layers in the plan.
    pub(crate) fn uses_imagined(&self) -> bool {
        let seat = |stage: &PlannedStage| self.chosen.seats.get(stage.device_index).copied();
        self.plan().stages.iter().any(|stage| seat(stage) == Some(Seat::Imagined))
    }

    /// Names of the workers that are held and have no layers, though some of them may be left out of plans.
    pub(crate) fn spares(&self) -> Vec<String> {
        let used = |name: &str| self.chosen.plan.stages.iter().any(|stage| stage.device == name);
        self.names().into_iter().filter(|name| !used(name)).collect()
    }

    /// Names of all workers that are held.
    pub(crate) fn names(&self) -> Vec<String> {
        let held = self.members.iter().filter(|member| member.is_held());
        held.map(|member| member.name().to_owned()).collect()
    }

    /// Which processes of workers are held but those of these names: one that was started again may offer
    /// something else.
    pub(crate) fn instances(&self, without: &[String]) -> Vec<String> {
        let is_without = |member: &&Member| without.iter().any(|name| name == member.name());
        let held = self.members.iter().filter(|member| member.is_held() && !is_without(member));
        held.map(|member| member.offer.instance.clone()).collect()
    }

    /// The plan, for people who watch the service.
    pub(crate) fn planned(&self) -> Planned {
        let device = |stage: &PlannedStage| {
            let local = self.chosen.seats.get(stage.device_index) == Some(&Seat::Master);
            Device {
                name: stage.device.clone(),
                local,
                state: DeviceState::Waiting,
                layers: stage.layers,
                direct: true,
                memory: stage.memory,
                hop_seconds: (!local).then_some(stage.hop_seconds),
            }
        };
        Planned {
            encoding: self.model.encoding.to_string(),
            context: self.chosen.promise.context,
            parallel: self.chosen.promise.parallel,
            layers: self.model.checkpoint.config.layers.len(),
            devices: self.chosen.plan.stages.iter().map(device).collect(),
        }
    }

    /// The workers of the plan with their layers, in chain order.
    pub(crate) fn assignments(&self) -> Vec<Assignment<'_>> {
        self.assignments_of(&self.chosen)
    }

    /// The same of another plan.
    pub(crate) fn assignments_of<'a>(&'a self, chosen: &'a Chosen) -> Vec<Assignment<'a>> {
        let remotes = self.remotes_of(chosen).into_iter();
        remotes.map(|(stage, member)| Assignment { member, layers: stage.layers }).collect()
    }

    /// Where `run` and `chat` tell of plan and push: nowhere if nobody asked or no worker takes part.
    pub(crate) fn tell(&self, json: bool) -> Tell {
        if json || self.remotes().is_empty() { Tell::Nobody } else { Tell::Notes }
    }

    /// Blob bytes that workers are not known to hold, per assignment.
    pub(crate) fn missing_bytes(&self) -> Vec<u64> {
        let assignments = self.assignments();
        assignments.iter().map(|one| distributor::missing_bytes(one, &self.manifests)).collect()
    }

    /// Tells, once, what people should know of whom the plan is made for.
    pub(crate) fn tell_notes(&self) {
        let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        notes.iter().for_each(|note| out::note(format_args!("note: {note}")));
    }

    /// Why this machine may not have room for what the master does itself, if its part was not counted when the
    /// plan was made.
    fn own_shortfall(&self) -> Option<String> {
        let local = self.local_plan().map(|stage| stage.memory);
        if local.is_some_and(|memory| memory.overhead > 0) {
            return None; // It was counted.
        }
        let ends = sizing::ends_bytes(&self.model, self.promise());
        let free = cake_platform::free_memory();
        own_shortfall(local.map_or(0, |memory| memory.total()), ends, &OwnMemory::of(free))
    }

    /// Tells the plan and what is (or `would` be) pushed: bytes, time and free disk of each worker.
    pub(crate) fn announce(&self, tell: Tell, would: &str) -> Result<(), Error> {
        self.tell_notes();
        tell.line(report::plan_text(self))?;
        report::push_forecast(self)
            .iter()
            .try_for_each(|line| tell.line(format_args!("{would}{line}")))
    }

    /// Tells the plan, pushes what is missing, and tells how that went.
    pub(crate) async fn announce_and_push(&self, tell: Tell) -> Result<PushReport, Error> {
        self.announce(tell, "")?;
        let pushed = self.push(tell == Tell::Nobody).await?;
        tell.line(report::push_summary(&pushed))?;
        Ok(pushed)
    }

    /// Pushes what is missing, showing progress on standard error unless `quiet`.
    pub(crate) async fn push(&self, quiet: bool) -> Result<PushReport, Error> {
        let started = std::time::Instant::now();
        let assignments = self.assignments();
        distributor::check_disk(&assignments, &self.manifests)?;
        let total = |layers: cake_checkpoint::LayerRange| {
            layers.iter().map(|layer| self.manifests.blob_bytes(layer)).sum()
        };
        let workers = assignments
            .iter()
            .map(|one| WorkerProgress::new(one.member.name(), total(one.layers)))
            .collect();
        let progress = Arc::new(Progress { workers });
        if let Some(monitor) = &self.monitor {
            monitor.pushing(&progress);
        }
        let drawing = show::PushDrawing::start(&progress, quiet);
        let pushed = distributor::push_all(&assignments, &self.manifests, &progress).await;
        drawing.finish().await;
        let workers = pushed?;
        Ok(PushReport {
            pushed_bytes: workers.iter().map(|one| one.pushed_bytes).sum(),
            reused_bytes: workers.iter().map(|one| one.reused_bytes).sum(),
            seconds: started.elapsed().as_secs_f64(),
            workers,
        })
    }
}

/// What does not fit, if something does not: `layers` bytes for the master's own layers and `ends` for the rest.
fn own_shortfall(layers: u64, ends: u64, own: &OwnMemory) -> Option<String> {
    let need = layers.saturating_add(ends);
    (need > own.bytes).then(|| {
        format!(
            "the master's own part takes {} (embedding and head {}), and this machine can give {} ({}): it may \
             have to swap, or be killed",
            format_bytes(need), format_bytes(ends), format_bytes(own.bytes), own.why
        )
    })
}

/// Name that workers tell other masters while this one holds them.
pub(crate) fn master_name() -> String {
    format!("{} (process {})", cake_platform::host_name(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_do_not_fit_beside_what_is_free_are_told() {
        let own = OwnMemory::of(4 << 30);
        assert_eq!(own_shortfall(1 << 30, 2 << 30, &own), None);
        let said = own_shortfall(1 << 30, 3 << 30, &own).expect("too much");
        assert!(said.contains("takes 4 GiB (embedding and head 3 GiB)"), "{said}");
        assert!(own_shortfall(u64::MAX, u64::MAX, &own).is_some());
    }
}
