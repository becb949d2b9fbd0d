//! What the cluster of a service is doing, for people who watch it: who holds what, and how far it is.
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

use crate::chronicle::Chronicle;
use crate::cluster::conduct::SetAside;
use crate::distributor::{Progress, WorkerProgress};
use crate::metrics::Metrics;
use crate::pipeline::{self, StageInfo};
use crate::planner::StageMemory;
use crate::running::Running;

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

/// Watches a service come up and run.
#[derive(Debug)]
pub struct Monitor {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What happened lately.
    pub chronicle: Arc<Chronicle>,
    /// The requests that are computed.
    pub running: Arc<Running>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    model: String,
    phase: Phase,
    reason: Option<String>,
    planned: Planned,
    spares: Vec<String>,
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
        };
        Self {
            model: model.to_owned(),
            phase,
            reason,
            planned,
            spares: Vec::new(),
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
    /// Why it is broken.
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
    /// Seconds that it computes for a step, lately.
    pub step_seconds: Option<f64>,
}

impl Monitor {
    /// Of a service that serves a model by this name; nothing is planned yet.
    pub fn new(model: &str) -> Self {
        let state = State::new(model, Phase::Planning, None);
        Self {
            metrics: Arc::default(),
            chronicle: Arc::default(),
            running: Arc::default(),
            state: Mutex::new(state),
        }
    }

    /// The model of this name is about to be loaded in the place of whatever was.
    pub fn begins(&self, model: &str) {
        *self.state() = State::new(model, Phase::Planning, Some(format!("loading {model}")));
    }

    /// No model is loaded, for this reason if there is one beside that nobody asked.
    pub fn idle(&self, why: Option<&str>) {
        let reason =
            why.map_or("no model is loaded".to_owned(), |why| format!("no model is loaded: {why}"));
        *self.state() = State::new("", Phase::Idle, Some(reason));
    }

    /// There is a plan.
    pub fn planned(&self, planned: Planned) {
        self.state().planned = planned;
    }

    /// These workers are there, too.
    pub fn spares(&self, names: Vec<String>) {
        self.state().spares = names;
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

    /// How far the service is, and why it is not further.
    pub fn phase(&self) -> (Phase, Option<String>) {
        let state = self.state();
        (state.phase, state.reason.clone())
    }

    /// Everything at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let Planned { encoding, context, parallel, layers, parts_of, devices } =
            state.planned.clone();
        let push = |device: &Device| {
            let workers = &state.progress.as_ref()?.workers;
            let progress = workers.iter().find(|progress| progress.name == device.name)?;
            Some(Push::of(progress))
        };
        let now = |(index, device): (usize, Device)| DeviceNow {
            push: if device.local { None } else { push(&device) },
            step_seconds: self.metrics.recent_step_seconds(index),
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
            spares: state.spares.clone(),
            set_aside: state.set_aside.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, local: bool, (start, end): (usize, usize)) -> Device {
        Device {
            name: name.to_owned(),
            local,
            state: DeviceState::Waiting,
            layers: LayerRange::new(start, end),
            direct: true,
            memory: StageMemory {
                weights: 1,
                kv: 2,
                state: 0,
                scratch: 3,
                overhead: 4,
                budget: 20,
            },
            hop_seconds: (!local).then_some(0.001),
        }
    }

    fn monitor() -> Monitor {
        let monitor = Monitor::new("m");
        monitor.planned(Planned {
            encoding: "q8".into(),
            context: 64,
            parallel: 2,
            layers: 5,
            parts_of: None,
            devices: vec![device("master", true, (0, 2)), device("a", false, (2, 5))],
        });
        monitor
    }

    #[test]
    fn a_service_comes_up_and_loses_a_worker() {
        let monitor = monitor();
        assert_eq!(monitor.phase(), (Phase::Planning, None));
        let progress = Progress { workers: vec![WorkerProgress::new("a", 100)] };
        monitor.pushing(&Arc::new(progress));
        let pushing = monitor.snapshot();
        let push = Push { total_bytes: 100, sent_bytes: 0, reused_bytes: 0, finished: false };
        assert_eq!((pushing.devices[0].push, pushing.devices[1].push), (None, Some(push)));
        assert_eq!(pushing.devices[1].device.state, DeviceState::Pushing);
        monitor.loading();
        let stage = |worker: &str, direct| StageInfo {
            worker: worker.into(),
            layers: LayerRange::new(0, 1),
            direct,
        };
        monitor.wired(&[stage("master", true), stage("a", false)]);
        monitor.ready();
        let ready = monitor.snapshot();
        assert!(ready.phase == Phase::Ready && !ready.devices[1].device.direct);
        let lost = pipeline::Error::Lost { worker: "a".into(), reason: "it is gone".into() };
        monitor.lost(&lost);
        let without = monitor.snapshot();
        assert_eq!(without.phase, Phase::Recovering);
        assert_eq!(without.reason.as_deref(), Some("lost worker \"a\": it is gone"));
        let states = without.devices.iter().map(|now| now.device.state).collect::<Vec<_>>();
        assert_eq!(states, [DeviceState::Ready, DeviceState::Lost]);
        monitor.broken("nobody has room");
        assert_eq!(monitor.phase(), (Phase::Broken, Some("nobody has room".to_owned())));
        monitor.ready();
        assert_eq!(monitor.phase(), (Phase::Ready, None));
    }

    #[test]
    fn a_model_takes_the_place_of_another() {
        let monitor = monitor();
        monitor.ready();
        monitor.begins("n");
        let begun = monitor.snapshot();
        assert_eq!(
            (begun.model.as_str(), begun.phase, begun.devices.len()),
            ("n", Phase::Planning, 0)
        );
        assert_eq!(begun.reason.as_deref(), Some("loading n"));
        monitor.idle(Some("it is damaged"));
        let idle = serde_json::to_value(monitor.snapshot()).unwrap();
        assert_eq!((&idle["phase"], &idle["model"]), (&"idle".into(), &"".into()));
        assert_eq!(idle["reason"], "no model is loaded: it is damaged");
    }

    #[test]
    fn who_is_set_aside_is_told_with_the_reason() {
        let monitor = monitor();
        assert_eq!(monitor.aside(), "");
        let set_aside = |quarantine| SetAside {
            worker: "a".into(),
            quarantine,
            seconds: 7,
            reason: "it answered 3 rows".into(),
        };
        monitor.set_aside(vec![set_aside(true)]);
        assert_eq!(monitor.aside(), "; \"a\" is in quarantine: it answered 3 rows");
        let text = monitor.metrics.text();
        assert!(text.contains("cake_workers_set_aside{state=\"quarantine\"} 1\n"), "{text}");
        monitor.set_aside(vec![set_aside(false)]);
        assert_eq!(monitor.aside(), "; \"a\" gets no layers for 7 s: it answered 3 rows");
        let json = serde_json::to_value(monitor.snapshot()).unwrap();
        assert_eq!(json["set_aside"][0]["worker"], "a");
        assert_eq!(json["set_aside"][0]["quarantine"], false);
    }

    #[test]
    fn the_page_reads_these_names() {
        let json = serde_json::to_value(monitor().snapshot()).unwrap();
        assert_eq!(json["phase"], "planning");
        assert_eq!(json["devices"][1]["layers"], "2..5");
        assert_eq!(json["devices"][1]["state"], "waiting");
        assert_eq!(json["devices"][1]["memory"]["budget"], 20);
        assert_eq!(json["devices"][0]["hop_seconds"], serde_json::Value::Null);
        assert_eq!(json["devices"][0]["step_seconds"], serde_json::Value::Null);
    }
}
