//! From arguments to a plan, and from a plan to a running pipeline: what every command shares.
use std::collections::HashSet;
use std::sync::Arc;

use cake_checkpoint::{Checkpoint, Digest};
use cake_engine::{EngineOptions, Ops, Stage};
use serde::Serialize;

use super::args::{ClusterArgs, PlanArgs};
use super::{Error, show};
use crate::cluster::{self, Measured, Member};
use crate::distributor::{self, Assignment, Manifests, Progress, Pushed, WorkerProgress};
use crate::generate::Ends;
use crate::pipeline::{self, Opening, Pipeline, StageSpec};
use crate::planner::{self, Plan};
use crate::sizing::{self, Candidate, LOCAL, Promise};
use crate::state::State;

/// A checkpoint, the workers held for it, and the plan.
pub(super) struct Prepared {
    /// The model.
    pub checkpoint: Arc<Checkpoint>,
    /// What was promised.
    pub promise: Promise,
    /// The plan.
    pub plan: Plan,
    members: Vec<Member>,
    manifests: Arc<Manifests>,
    state: State,
    threads: usize,
}

/// How a push went, for reports.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PushReport {
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
    fn repair(&mut self, second: &Self) {
        self.pushed_bytes += second.pushed_bytes;
        self.reused_bytes = self.reused_bytes.saturating_sub(second.pushed_bytes);
        self.seconds += second.seconds;
        for (worker, again) in self.workers.iter_mut().zip(&second.workers) {
            worker.pushed_bytes += again.pushed_bytes;
            worker.reused_bytes = worker.reused_bytes.saturating_sub(again.pushed_bytes);
        }
    }
}

/// Opens the model, takes the workers, measures them and plans.
pub(super) async fn prepare(
    model: &str,
    cluster: &ClusterArgs,
    args: &PlanArgs,
    what_if: &[(String, u64)],
) -> Result<Prepared, Error> {
    let checkpoint = Arc::new(Checkpoint::open(model)?);
    for warning in &checkpoint.warnings {
        eprintln!("warning: {warning}");
    }
    let promise = args.promise(&checkpoint)?;
    let state = State::open()?;
    let manifests = Arc::new(Manifests::open(checkpoint.clone(), state.digests()?)?);
    let members = cluster::hold_all(&cluster.addresses()?, &master_name()).await?;
    let threads = cake_worker::platform::default_threads();
    let candidates = candidates(&checkpoint, &state, &members, args, what_if, threads).await?;
    let input =
        sizing::input(&checkpoint, &promise, &candidates, &manifests.all_known(), args.pins());
    let plan = planner::plan(&input)?;
    Ok(Prepared { checkpoint, promise, plan, members, manifests, state, threads })
}

/// Everyone who could hold layers: workers, wished-for workers, and the master itself.
async fn candidates(
    checkpoint: &Checkpoint,
    state: &State,
    members: &[Member],
    args: &PlanArgs,
    what_if: &[(String, u64)],
    threads: usize,
) -> Result<Vec<Candidate>, Error> {
    let excluded: HashSet<&str> = args.exclude.iter().map(String::as_str).collect();
    let names = members.iter().map(Member::name);
    let known: Vec<&str> = names.chain(what_if.iter().map(|(name, _)| name.as_str())).collect();
    if let Some(unknown) = excluded.iter().find(|name| !known.contains(*name)) {
        let expected = format!("the name of a worker: {}", known.join(", "));
        return Err(Error::argument("--exclude", unknown, expected));
    }
    let used: Vec<&Member> =
        members.iter().filter(|member| !excluded.contains(member.name())).collect();
    let measure = used.iter().map(|member| rates(checkpoint, state, member, args.reprobe));
    let measured = futures_util::future::try_join_all(measure).await?;
    let mut all: Vec<Candidate> = used
        .iter()
        .zip(measured)
        .map(|(member, measured)| Candidate::worker(member, Some(measured)))
        .collect();
    let wished = what_if.iter().filter(|(name, _)| !excluded.contains(name.as_str()));
    all.extend(wished.map(|(name, bytes)| Candidate::what_if(name, *bytes)));
    let local = args.local_memory.unwrap_or(if all.is_empty() { u64::MAX } else { 0 });
    if local > 0 {
        let rate = if all.is_empty() { None } else { Some(local_rates(checkpoint, threads)?) };
        all.insert(0, Candidate::local(local, threads, rate));
    }
    Ok(all)
}

/// The worker's rates: as measured before of the same process and shape, else measured now.
async fn rates(
    checkpoint: &Checkpoint,
    state: &State,
    member: &Member,
    again: bool,
) -> Result<Measured, Error> {
    let dtype = sizing::main_dtype(checkpoint);
    let shape = blake3::hash(&checkpoint.config_json).to_hex();
    let key = format!("{}/{}/{dtype}/{shape}", member.offer.worker_id, member.offer.instance);
    if let Some(known) = state.measured(&key).filter(|_| !again) {
        return Ok(known);
    }
    let measured = cluster::measure(member, &checkpoint.config_json, dtype.name()).await?;
    state.remember(&key, measured.clone());
    Ok(measured)
}

/// The master's own rates, for a plan in which it competes with workers.
fn local_rates(checkpoint: &Checkpoint, threads: usize) -> Result<Measured, Error> {
    let dtype = sizing::main_dtype(checkpoint);
    let config = &checkpoint.config;
    let probe =
        tokio::task::block_in_place(|| cake_engine::probe_layer(config, dtype, threads, u64::MAX))?;
    Ok(Measured {
        decode_seconds: probe.decode.as_secs_f64(),
        probe_bytes: probe.bytes.max(1),
        rtt_seconds: 0.0,
        bytes_per_second: f64::MAX,
    })
}

impl Prepared {
    /// The workers of the plan with their layers, in chain order.
    pub(super) fn assignments(&self) -> Vec<Assignment<'_>> {
        let member = |name: &str| self.members.iter().find(|member| member.name() == name);
        let assign = |stage: &planner::PlannedStage| {
            Some(Assignment { member: member(&stage.device)?, layers: stage.layers })
        };
        self.plan.stages.iter().filter_map(assign).collect()
    }

    /// Blob bytes that workers are not known to hold, per assignment.
    pub(super) fn missing_bytes(&self) -> Vec<u64> {
        let assignments = self.assignments();
        assignments.iter().map(|one| distributor::missing_bytes(one, &self.manifests)).collect()
    }

    /// Pushes what is missing, showing progress on standard error unless `quiet`.
    pub(super) async fn push(&self, quiet: bool) -> Result<PushReport, Error> {
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

    /// Loads the stages and connects them. Blobs found damaged on workers are pushed once more,
    /// which `pushed` then includes.
    pub(super) async fn open(
        &self,
        quiet: bool,
        pushed: &mut PushReport,
    ) -> Result<Pipeline, Error> {
        match self.open_once().await {
            Err(Error::Open(pipeline::OpenError::Corrupt { worker, count })) => {
                let blobs = if count == 1 { "blob" } else { "blobs" };
                eprintln!(
                    "worker {worker:?} found {count} damaged {blobs} and discarded them: pushing again"
                );
                pushed.repair(&self.push(quiet).await?);
                self.open_once().await
            }
            result => result,
        }
    }

    async fn open_once(&self) -> Result<Pipeline, Error> {
        let mut remotes = Vec::new();
        for assignment in self.assignments() {
            let mut blobs: Vec<Digest> = Vec::new();
            for layer in assignment.layers.iter() {
                blobs.push(self.manifests.get(layer).await?.name());
            }
            let name = assignment.member.name();
            let planned = self.plan.stages.iter().find(|stage| stage.device == name);
            remotes.push(StageSpec {
                member: assignment.member,
                layers: assignment.layers,
                blobs,
                planned_bytes: planned.map_or(0, |stage| stage.memory.total()),
            });
        }
        Ok(pipeline::open(Opening {
            generation: self.state.next_generation()?,
            config_json: &self.checkpoint.config_json,
            hidden_size: self.checkpoint.config.hidden_size,
            promise: self.promise,
            local: self.local_stage()?,
            remotes,
        })
        .await?)
    }

    /// The master's own layers, mapped from the checkpoint.
    fn local_stage(&self) -> Result<Option<(Stage, cake_checkpoint::LayerRange)>, Error> {
        let Some(planned) = self.plan.stages.iter().find(|stage| stage.device == LOCAL) else {
            return Ok(None);
        };
        let mut weights = std::collections::HashMap::new();
        for tensor in planned.layers.iter().flat_map(|layer| self.checkpoint.layer_tensors(layer)) {
            weights.insert(tensor.name.clone(), self.checkpoint.map(tensor)?);
        }
        let find = |name: &str| weights.get(name).cloned();
        let config = &self.checkpoint.config;
        let stage = Stage::load(config, planned.layers, &find, &self.engine_options()?)?;
        Ok(Some((stage, planned.layers)))
    }

    /// The master's own part: embedding, norm and head.
    pub(super) fn ends(&self) -> Result<Ends, Error> {
        Ok(Ends::open(&self.checkpoint, &self.engine_options()?)?)
    }

    /// Asks every worker of the plan for its peak memory and lets it unload.
    pub(super) async fn release(&self) -> Vec<(String, u64)> {
        let mut peaks = Vec::new();
        for Assignment { member, .. } in self.assignments() {
            let mut client = member.client.clone();
            let call = client.release(cake_proto::wire::ReleaseRequest::default());
            if let Ok(reply) = cluster::within(member.name(), "unload", call).await {
                peaks.push((member.name().to_owned(), reply.peak_bytes));
            }
        }
        peaks
    }

    fn engine_options(&self) -> Result<EngineOptions, Error> {
        Ok(EngineOptions {
            kv: self.promise.kv,
            kv_blocks: self.promise.kv_blocks(),
            block_positions: cake_engine::BLOCK_POSITIONS,
            max_positions: self.promise.context,
            threads: self.threads,
            ops: Ops::from_env()?,
        })
    }
}

/// Name that workers tell other masters while this one holds them.
pub(super) fn master_name() -> String {
    format!("{} (process {})", cake_worker::platform::host_name(), std::process::id())
}
