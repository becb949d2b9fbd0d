//! What the cluster does for one model of a service, for people who watch it: who holds what, and how far it is.
//!
//! ```text
//! planning ──▶ pushing ──▶ loading ──▶ ready ──▶ recovering ──▶ broken
//!    ▲            ▲           │          │            │            │
//!    │            ├───────────┘ damaged  │            │            │
//!    │            └──────────────────────│────────────┴────────────┘
//!    └── idle ◀── the model is put away ─┘
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cake_checkpoint::LayerRange;
use serde::Serialize;

use crate::chronicle::{Chronicle, Entry, Kind};
use crate::cluster::conduct::SetAside;
use crate::distributor::{Progress, WorkerProgress};
use crate::metrics::{Metrics, Recent};
use crate::pipeline::{self, StageInfo};
use crate::planner::StageMemory;
use crate::present::{Duty, Present, changes};
use crate::wonder::Questions;

/// How far a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No model is loaded: who asks for one waits until it is.
    Idle,
    /// Workers are asked what they offer.
    Planning,
    /// Blobs are on their way.
    Pushing,
    /// Stages load.
    Loading,
    /// Requests are answered.
    Ready,
    /// A stage is gone; requests wait.
    Recovering,
    /// A stage is gone, and nothing took its place in time: requests are refused for now.
    Broken,
}

/// How far one device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// It has nothing to do yet.
    Waiting,
    /// It receives blobs.
    Pushing,
    /// It loads its layers.
    Loading,
    /// It takes steps.
    Ready,
    /// It is gone.
    Lost,
}

/// One device of the chain.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its id; none of the master.
    pub worker_id: Option<String>,
    /// Whether it is the master itself.
    pub local: bool,
    /// How far it is.
    pub state: DeviceState,
    /// Its layers.
    pub layers: LayerRange,
    /// False if the master carries its output to the next one.
    pub direct: bool,
    /// Its memory as planned.
    pub memory: StageMemory,
    /// Seconds to deliver one row to it, as measured when the plan was made; none for the master.
    pub hop_seconds: Option<f64>,
}

/// A plan, as far as people want to see it.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    /// What the weights are turned into.
    pub encoding: String,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// Layers of the model, or parts of them.
    pub layers: usize,
    /// Layers of the model where the chain has parts of them.
    pub parts_of: Option<usize>,
    /// The chain.
    pub devices: Vec<Device>,
    /// Workers that are held.
    pub members: Vec<Present>,
}

/// Blobs of one device on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Push {
    /// Bytes it must hold in the end.
    pub total_bytes: u64,
    /// Sent so far.
    pub sent_bytes: u64,
    /// There already.
    pub reused_bytes: u64,
    /// Whether all of them are there.
    pub finished: bool,
}

impl Push {
    fn of(progress: &WorkerProgress) -> Self {
        Self {
            total_bytes: progress.total_bytes,
            sent_bytes: progress.sent(),
            reused_bytes: progress.reused(),
            finished: progress.finished(),
        }
    }
}

/// Watches a model come up and run.
#[derive(Debug)]
pub struct Monitor {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What happened lately.
    pub chronicle: Arc<Chronicle>,
    /// What people want to know of plans.
    pub(crate) questions: Questions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    model: String,
    phase: Phase,
    reason: Option<String>,
    planned: Planned,
    set_aside: Vec<SetAside>,
    progress: Option<Arc<Progress>>,
}

impl State {
    /// Nothing is planned yet.
    fn new(model: &str, phase: Phase, reason: Option<String>) -> Self {
        let planned = Planned {
            encoding: String::new(),
            context: 0,
            parallel: 0,
            layers: 0,
            parts_of: None,
            devices: Vec::new(),
            members: Vec::new(),
        };
        Self {
            model: model.to_owned(),
            phase,
            reason,
            planned,
            set_aside: Vec::new(),
            progress: None,
        }
    }
}

/// All of it at one moment, as `/api/cluster` tells it.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The name for clients of the model that is loaded, or being loaded; empty if there is none.
    pub model: String,
    /// How far the service is.
    pub phase: Phase,
    /// Why the phase is what it is, where that needs saying: not where no model is loaded as nobody asked for one.
    pub reason: Option<String>,
    /// What the weights are turned into.
    pub encoding: String,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// Layers of the model, or parts of them.
    pub layers: usize,
    /// Layers of the model where the chain has parts of them.
    pub parts_of: Option<usize>,
    /// The chain.
    pub devices: Vec<DeviceNow>,
    /// Workers that are there and hold no layers: the next plan may use them.
    pub spares: Vec<String>,
    /// Workers that are held, those of the chain among them.
    pub members: Vec<Present>,
    /// What happened lately, the latest last.
    pub happened: Vec<Entry>,
    /// Workers that get no layers for now, for what they did.
    pub set_aside: Vec<SetAside>,
}

/// One device at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceNow {
    /// What stays.
    #[serde(flatten)]
    pub device: Device,
    /// Its blobs on their way.
    pub push: Option<Push>,
    /// What it did lately.
    #[serde(flatten)]
    pub recent: Recent,
}

impl Monitor {
    /// Of a model of this name, of which nothing is planned yet.
    pub fn new(model: &str, metrics: Metrics, chronicle: Arc<Chronicle>) -> Self {
        let state = State::new(model, Phase::Planning, None);
        let metrics = Arc::new(metrics);
        Self { metrics, chronicle, questions: Questions::default(), state: Mutex::new(state) }
    }

    /// It is about to be loaded.
    pub fn begins(&self) {
        let model = self.model();
        *self.state() = State::new(&model, Phase::Planning, Some(format!("loading {model}")));
    }

    /// No model is loaded, for this reason if there is one beside that nobody asked.
    pub fn idle(&self, why: Option<&str>) {
        let reason = why.map(|why| format!("no model is loaded: {why}"));
        *self.state() = State::new("", Phase::Idle, reason);
    }

    /// The model's name for clients; empty if there is none.
    pub fn model(&self) -> String {
        self.state().model.clone()
    }

    /// There is a plan.
    pub fn planned(&self, planned: Planned) {
        self.metrics.other_stages();
        let mut state = self.state();
        let before = std::mem::replace(&mut state.planned, planned);
        if state.phase != Phase::Planning {
            self.note_changes(&before.members, &state.planned.members);
        }
    }

    /// These workers are held now.
    pub fn members(&self, members: Vec<Present>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.planned.members, members);
        self.note_changes(&before, &state.planned.members);
        state.miss();
    }

    /// Notes who came and who went between two looks.
    fn note_changes(&self, before: &[Present], now: &[Present]) {
        changes(before, now)
            .into_iter()
            .for_each(|words| self.chronicle.add_once(Kind::Worker, words));
    }

    /// These workers get no layers for now.
    pub fn set_aside(&self, workers: Vec<SetAside>) {
        let quarantined = workers.iter().filter(|worker| worker.quarantine).count();
        self.metrics.set_aside(workers.len() - quarantined, quarantined);
        self.state().set_aside = workers;
    }

    /// Who gets no layers for now and why, as the end of a sentence; empty if nobody.
    pub fn aside(&self) -> String {
        let aside = |worker: &SetAside| {
            let SetAside { worker, quarantine, seconds, reason } = worker;
            match quarantine {
                true => format!("; {worker:?} is in quarantine: {reason}"),
                false => format!("; {worker:?} gets no layers for {seconds} s: {reason}"),
            }
        };
        self.state().set_aside.iter().map(aside).collect()
    }

    /// Blobs are being pushed, as `progress` counts.
    pub fn pushing(&self, progress: &Arc<Progress>) {
        self.state().progress = Some(progress.clone());
        self.enter(Phase::Pushing, DeviceState::Pushing);
    }

    /// The stages load.
    pub fn loading(&self) {
        self.enter(Phase::Loading, DeviceState::Loading);
    }

    /// These stages are connected.
    pub fn wired(&self, stages: &[StageInfo]) {
        let mut state = self.state();
        for (device, stage) in state.planned.devices.iter_mut().zip(stages) {
            device.direct = stage.direct;
        }
    }

    /// Requests are answered.
    pub fn ready(&self) {
        self.enter(Phase::Ready, DeviceState::Ready);
        self.state().reason = None;
    }

    /// The pipeline ended; another one is being made.
    pub fn lost(&self, error: &pipeline::Error) {
        let mut state = self.state();
        state.phase = Phase::Recovering;
        state.reason = Some(error.to_string());
        if let Some(worker) = error.worker() {
            let devices = state.planned.devices.iter_mut();
            devices.filter(|device| device.name == worker).for_each(|device| {
                device.state = DeviceState::Lost;
            });
        }
    }

    /// There is none yet.
    pub fn not_yet(&self, why: &str) {
        self.because(Phase::Recovering, why);
    }

    /// There was none in time.
    pub fn broken(&self, why: &str) {
        self.because(Phase::Broken, why);
    }

    fn because(&self, phase: Phase, why: &str) {
        let mut state = self.state();
        state.phase = phase;
        state.reason = Some(why.to_owned());
    }

    fn enter(&self, phase: Phase, device_state: DeviceState) {
        let mut state = self.state();
        state.phase = phase;
        state.planned.devices.iter_mut().for_each(|device| device.state = device_state);
    }

    /// How far it is, and why it is not further.
    pub fn phase(&self) -> (Phase, Option<String>) {
        let state = self.state();
        (state.phase, state.reason.clone())
    }

    /// Everything at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let Planned { encoding, context, parallel, layers, parts_of, devices, mut members } =
            state.planned.clone();
        members.iter_mut().for_each(|member| state.judge(member));
        let has_none = |member: &&Present| devices.iter().all(|device| device.name != member.name);
        let spares = members.iter().filter(has_none).map(|member| member.name.clone()).collect();
        let push = |device: &Device| {
            let workers = &state.progress.as_ref()?.workers;
            let progress = workers.iter().find(|progress| progress.name == device.name)?;
            Some(Push::of(progress))
        };
        let now = |(index, device): (usize, Device)| DeviceNow {
            push: if device.local { None } else { push(&device) },
            recent: self.metrics.recent(index),
            device,
        };
        Snapshot {
            model: state.model.clone(),
            phase: state.phase,
            reason: state.reason.clone(),
            encoding,
            context,
            parallel,
            layers,
            parts_of,
            devices: devices.into_iter().enumerate().map(now).collect(),
            spares,
            members,
            happened: self.chronicle.of_cluster(),
            set_aside: state.set_aside.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// While nothing is computed, whoever is not held any more is lost, too: one loss is told of, and there may be more.
    fn miss(&mut self) {
        if !matches!(self.phase, Phase::Recovering | Phase::Broken) {
            return;
        }
        let Planned { devices, members, .. } = &mut self.planned;
        let is_held = |id: &String| members.iter().any(|member| member.worker_id == *id);
        let gone = |device: &&mut Device| device.worker_id.as_ref().is_some_and(|id| !is_held(id));
        devices.iter_mut().filter(gone).for_each(|device| device.state = DeviceState::Lost);
    }

    /// Says of a member that gets no layers for what it did.
    fn judge(&self, member: &mut Present) {
        let Some(aside) = self.set_aside.iter().find(|aside| aside.worker == member.name) else {
            return;
        };
        member.duty = if aside.quarantine { Duty::Quarantined } else { Duty::Paused };
        member.why = Some(aside.reason.clone());
    }
}

#[cfg(test)]
mod tests;
