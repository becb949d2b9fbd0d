//! What a service does for all of its models, for people who watch it: each that is loaded, or being loaded, has a monitor.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::chronicle::Chronicle;
use crate::cluster::Awaited;
use crate::metrics::Metrics;
use crate::monitor::{DeviceNow, Monitor, Phase, Snapshot};
use crate::present::{Duty, Present};
use crate::running::Running;

/// The monitors of a service.
#[derive(Debug)]
pub struct Board {
    /// What is counted of the service.
    pub metrics: Metrics,
    /// What happened lately.
    pub chronicle: Arc<Chronicle>,
    /// The requests that are computed.
    pub running: Arc<Running>,
    /// Stands for the service where there is no model.
    none: Monitor,
    /// In the order in which they were begun.
    models: Mutex<Vec<Arc<Monitor>>>,
    awaited: Mutex<Vec<Awaited>>,
}

/// One of several models at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct ModelNow {
    /// Its name for clients.
    pub model: String,
    /// How far it is.
    pub phase: Phase,
    /// Why it is not further.
    pub reason: Option<String>,
    /// What its weights are turned into.
    pub encoding: String,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// Its layers, or parts of them.
    pub layers: usize,
    /// Its layers where the chain has parts of them.
    pub parts_of: Option<usize>,
    /// Its chain.
    pub devices: Vec<DeviceNow>,
}

/// All of it at one moment, as `/api/cluster` tells it.
#[derive(Clone, Debug, Serialize)]
pub struct Watched {
    /// Of the model that is further than others, the last of such; who is held holds for all.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Every model that is loaded, or being loaded.
    pub models: Vec<ModelNow>,
    /// Workers at the addresses given that nobody here holds, while no model is loaded.
    pub awaited: Vec<Awaited>,
}

impl Board {
    /// Of a service that is about to serve a model by this name, or empty where it has several.
    pub fn new(model: &str) -> Self {
        let (metrics, chronicle) = (Metrics::default(), Arc::<Chronicle>::default());
        let none = Monitor::new(model, metrics.beside(), chronicle.clone());
        let (models, awaited) = (Mutex::default(), Mutex::default());
        Self { metrics, chronicle, running: Arc::default(), none, models, awaited }
    }

    /// The model of this name is about to be loaded.
    pub fn begins(&self, model: &str) -> Arc<Monitor> {
        let monitor = Monitor::new(model, self.metrics.beside(), self.chronicle.clone());
        monitor.begins();
        let monitor = Arc::new(monitor);
        self.models().push(monitor.clone());
        monitor
    }

    /// This model is loaded no longer, or could not be.
    pub fn ends(&self, monitor: &Arc<Monitor>) {
        self.models().retain(|one| !Arc::ptr_eq(one, monitor));
    }

    /// Where no model is loaded, why, if there is a reason beside that nobody asked.
    pub fn idle(&self, why: Option<&str>) {
        self.none.idle(why);
    }

    /// Who is there for the next model, as far as addresses were given; nobody where one is loaded, which looks for them.
    pub fn awaits(&self, workers: Vec<Awaited>) {
        *self.awaited() = workers;
    }

    /// The model that is further than others; empty if there is none.
    pub fn model(&self) -> String {
        self.first(Monitor::model)
    }

    /// How far the service is: as far as the model that is further than others, and why not further.
    pub fn phase(&self) -> (Phase, Option<String>) {
        self.first(Monitor::phase)
    }

    /// How far the model of this name is, if it is loaded or being loaded.
    pub fn phase_of(&self, model: &str) -> Option<(Phase, Option<String>)> {
        self.models().iter().find(|one| one.model() == model).map(|one| one.phase())
    }

    /// What a loss did to other models than the one that is further, and who gets no layers for now, as the end of a
    /// sentence; empty if nothing did, and nobody.
    pub fn aside(&self) -> String {
        let models = self.models();
        let hurt = |one: &&Arc<Monitor>| matches!(one.phase().0, Phase::Recovering | Phase::Broken);
        let say = |one: &Arc<Monitor>| {
            let why = one.phase().1.unwrap_or_default();
            format!("; {} waits: {why}", one.model())
        };
        let whole = models.iter().any(|one| one.phase().0 == Phase::Ready);
        let hurt = models.iter().filter(hurt).filter(|_| whole).map(say);
        let mut said: String = hurt.collect();
        // All that are loaded know the same of members.
        said.push_str(&best(&models).map_or_else(|| self.none.aside(), |one| one.aside()));
        said
    }

    /// Who answers what people want to know of plans: for the model of this name, or the one that is further than others; none
    /// where it is not loaded.
    pub(crate) fn asked(&self, model: Option<&str>) -> Option<Arc<Monitor>> {
        let models = self.models();
        match model {
            Some(name) => models.iter().find(|one| one.model() == name).cloned(),
            None => best(&models).cloned(),
        }
    }

    /// Everything at this moment.
    pub fn snapshot(&self) -> Watched {
        let models = self.models().clone();
        let mut snapshot = best(&models).map_or_else(|| self.none.snapshot(), |one| one.snapshot());
        let all: Vec<Snapshot> = models.iter().map(|one| one.snapshot()).collect();
        for other in &all {
            other.members.iter().for_each(|member| join(&mut snapshot.members, member));
        }
        let works = |name: &String| {
            all.iter().any(|one| one.devices.iter().any(|it| it.device.name == *name))
        };
        snapshot.spares = snapshot.members.iter().map(|member| member.name.clone()).collect();
        snapshot.spares.retain(|name| !works(name));
        let model = |one: Snapshot| ModelNow {
            model: one.model,
            phase: one.phase,
            reason: one.reason,
            encoding: one.encoding,
            context: one.context,
            parallel: one.parallel,
            layers: one.layers,
            parts_of: one.parts_of,
            devices: one.devices,
        };
        // Whoever plans has looked for all of them meanwhile, and may hold one that was away.
        let is_looked_for = !snapshot.members.is_empty();
        let awaited = if is_looked_for { Vec::new() } else { self.awaited().clone() };
        Watched { snapshot, models: all.into_iter().map(model).collect(), awaited }
    }

    fn first<T>(&self, of: impl Fn(&Monitor) -> T) -> T {
        let models = self.models();
        best(&models).map_or_else(|| of(&self.none), |one| of(one))
    }

    fn awaited(&self) -> MutexGuard<'_, Vec<Awaited>> {
        // It is replaced whole.
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn models(&self) -> MutexGuard<'_, Vec<Arc<Monitor>>> {
        // Each change leaves it whole.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that is further than others, the last of such.
fn best(models: &[Arc<Monitor>]) -> Option<&Arc<Monitor>> {
    let far = |one: &&Arc<Monitor>| match one.phase().0 {
        Phase::Ready => 3,
        Phase::Recovering => 2,
        Phase::Broken => 1,
        Phase::Idle | Phase::Planning | Phase::Pushing | Phase::Loading => 0,
    };
    models.iter().max_by_key(far)
}

/// Adds a member that is not there, or the layers of one that is.
fn join(members: &mut Vec<Present>, member: &Present) {
    match members.iter_mut().find(|known| known.worker_id == member.worker_id) {
        None => members.push(member.clone()),
        Some(known) if known.duty == Duty::Spare && member.duty == Duty::Layers => {
            *known = member.clone();
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::conduct::SetAside;
    use crate::monitor::Planned;
    use crate::present::tests::spare;

    fn planned(members: Vec<Present>) -> Planned {
        Planned {
            encoding: String::new(),
            context: 64,
            parallel: 1,
            layers: 5,
            parts_of: None,
            devices: Vec::new(),
            members,
        }
    }

    #[test]
    fn a_service_is_as_far_as_its_best_model() {
        let board = Board::new("");
        board.idle(None);
        assert_eq!(board.phase(), (Phase::Idle, None));
        let one = board.begins("one");
        assert_eq!((board.phase().0, board.model()), (Phase::Planning, "one".to_owned()));
        one.planned(planned(vec![Present { duty: Duty::Layers, ..spare("a") }, spare("b")]));
        one.ready();
        let other = board.begins("other");
        assert_eq!((board.phase().0, board.model()), (Phase::Ready, "one".to_owned()));
        assert_eq!(board.phase_of("other").map(|it| it.0), Some(Phase::Planning));
        other.planned(planned(vec![spare("a"), Present { duty: Duty::Layers, ..spare("b") }]));
        other.ready();
        let watched = board.snapshot();
        assert_eq!(watched.snapshot.model, "other", "the last of those that are ready");
        let duties = watched.snapshot.members.iter().map(|member| member.duty);
        assert_eq!(duties.collect::<Vec<_>>(), [Duty::Layers, Duty::Layers]);
        let names: Vec<_> = watched.models.iter().map(|one| one.model.as_str()).collect();
        assert_eq!(names, ["one", "other"]);
        let set_aside = SetAside {
            worker: "a".to_owned(),
            quarantine: true,
            seconds: 7,
            reason: "it answered 3 rows".to_owned(),
        };
        other.set_aside(vec![set_aside]);
        let third = board.begins("third");
        assert!(
            board.aside().contains("quarantine"),
            "though a model that is planned knows nobody"
        );
        board.ends(&third);
        other.set_aside(Vec::new());
        other.not_yet("nobody has room");
        assert_eq!(board.phase().0, Phase::Ready);
        assert_eq!(board.aside(), "; other waits: nobody has room");
        board.ends(&other);
        board.ends(&one);
        assert_eq!((board.phase().0, board.snapshot().models.len()), (Phase::Idle, 0));
    }

    #[test]
    fn who_is_awaited_is_told_of_until_a_plan_holds_somebody() {
        let board = Board::new("");
        let away = Awaited {
            name: "192.168.1.7:7117".to_owned(),
            worker_id: None,
            online: false,
            held_by: None,
            memory_bytes: None,
            devices: Vec::new(),
            threads: None,
            why: Some("no worker answers there".to_owned()),
        };
        let away = vec![away];
        board.awaits(away.clone());
        let one = board.begins("one");
        assert_eq!(board.snapshot().awaited, away);
        one.planned(planned(vec![spare("a")]));
        assert_eq!(board.snapshot().awaited, [], "who plans has looked for all of them");
        board.ends(&one);
        assert_eq!(board.snapshot().awaited, away);
    }
}
