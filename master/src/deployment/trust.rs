//! What members did is remembered, said, and heeded by the next plan.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::event::{Event, Observer};
use crate::cluster::conduct::{Conduct, Consequence, Offence, SetAside};
use crate::cluster::{self, Member};
use crate::monitor::Monitor;
use crate::pipeline;

/// How much later another model may find out that a worker is gone, for it to be the same loss.
const SAME_LOSS: Duration = Duration::from_secs(20);

/// The conduct of members, as all keepers of a service know it.
pub(crate) struct Trust {
    shared: Arc<Mutex<Known>>,
    since: Instant,
    /// Which of them has this one.
    keeper: u64,
}

struct Known {
    conduct: Conduct,
    keepers: u64,
    /// By the instance of who was lost: which keeper noted it, and when.
    lost: HashMap<String, (u64, Duration)>,
}

/// Members that the next plan does without, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// In any case.
    pub set_aside: Vec<String>,
    /// Where others can do it.
    pub avoided: Vec<String>,
}

impl LeftOut {
    /// All of them.
    pub(crate) fn all(&self) -> Vec<String> {
        self.set_aside.iter().chain(&self.avoided).cloned().collect()
    }
}

impl Trust {
    /// Nobody did anything yet.
    pub(crate) fn new() -> Self {
        // No two masters go on in step.
        let conduct = Conduct::new(u64::from(std::process::id()));
        let known = Known { conduct, keepers: 0, lost: HashMap::new() };
        Self { shared: Arc::new(Mutex::new(known)), since: Instant::now(), keeper: 0 }
    }

    /// The same for another keeper: each learns what others noted.
    pub(crate) fn shared(&self) -> Self {
        let keeper = {
            let mut known = self.known();
            known.keepers += 1;
            known.keepers
        };
        Self { shared: self.shared.clone(), since: self.since, keeper }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each change leaves it whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Who is left out now.
    pub(crate) fn left_out(&self, members: &[Member]) -> LeftOut {
        let now = self.now();
        let known = self.known();
        let conduct = &known.conduct;
        let mut left = LeftOut::default();
        for member in members {
            let (id, instance) = (&member.offer.worker_id, &member.offer.instance);
            if conduct.is_set_aside(id, instance, now) {
                left.set_aside.push(member.name().to_owned());
            } else if conduct.is_avoided(id, now) {
                left.avoided.push(member.name().to_owned());
            }
        }
        left
    }

    /// The first of these members that is not to be given layers yet, though nobody else could hold them, and for how
    /// long.
    pub(crate) fn spared<'a>(
        &self,
        mut members: impl Iterator<Item = &'a Member>,
    ) -> Option<(String, Duration)> {
        let now = self.now();
        let known = self.known();
        let conduct = &known.conduct;
        members.find_map(|member| {
            let wait = conduct.spared_for(&member.offer.worker_id, now);
            (!wait.is_zero()).then(|| (member.name().to_owned(), wait))
        })
    }

    /// Ways between processes of workers that are not to be tried now.
    pub(crate) fn cut(&self, members: &[Member]) -> HashSet<(String, String)> {
        let now = self.now();
        let known = self.known();
        let conduct = &known.conduct;
        let processes = || members.iter().map(|member| member.offer.instance.as_str());
        let there: HashSet<&str> = processes().collect();
        let is_cut = |it: &&str| conduct.is_cut_off(it, |other| there.contains(other), now);
        let cut: HashSet<&str> = processes().filter(is_cut).collect();
        let ways = processes().flat_map(|from| processes().map(move |to| (from, to)));
        let ways = ways.filter(|(from, to)| cut.contains(from) || cut.contains(to));
        ways.map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
    }

    /// Tells people who is left out in any case.
    pub(crate) fn tell(&self, members: &[Member], monitor: &Monitor) {
        monitor.set_aside(self.set_aside(members));
    }

    fn set_aside(&self, members: &[Member]) -> Vec<SetAside> {
        let now = self.now();
        let known = self.known();
        let conduct = &known.conduct;
        let told = members.iter().filter_map(|member| {
            let (id, instance) = (&member.offer.worker_id, &member.offer.instance);
            conduct.set_aside(id, instance, member.name(), now)
        });
        told.collect()
    }

    /// A pipeline ended with this error: what its member computes with may not be what it was given. To be called
    /// before it puts that away.
    pub(crate) fn doubt(&self, error: &pipeline::Error, members: &mut [Member]) {
        use pipeline::Error::{Malformed, NotFinite};
        let (NotFinite { worker, .. } | Malformed { worker, .. }) = error else { return };
        members.iter_mut().filter(|member| member.name() == worker).for_each(Member::distrust);
    }

    /// A pipeline ended with this error. To be called once it is known who is there still.
    pub(crate) fn blame(
        &mut self,
        error: &pipeline::Error,
        members: &[Member],
        gone: &[Gone],
        monitor: &Monitor,
        observer: &dyn Observer,
    ) {
        use pipeline::Error::{Closed, Hop, Lost, Malformed, NotFinite, Silent, Stage, Swallowed};
        let (worker, offence) = match error {
            Hop { from, to, .. } => {
                let instance = |name: &str| {
                    let member = members.iter().find(|member| member.name() == name);
                    member.filter(|it| it.is_held()).map(|it| it.offer.instance.clone())
                };
                if let (Some(from_instance), Some(to_instance)) = (instance(from), instance(to)) {
                    let now = self.now();
                    let pause = self.known().conduct.note_hop(&from_instance, &to_instance, now);
                    monitor.metrics.failed_worker("hop");
                    return observer.tell(&Event::Rerouted { from, to, pause, error });
                }
                // It was no fault of the way: one of them is gone.
                let lost = if instance(to).is_none() { to } else { from };
                (lost, Offence::Lost)
            }
            Lost { worker, .. } => (worker, Offence::Lost),
            Malformed { worker, .. } => (worker, Offence::Malformed),
            NotFinite { worker, .. } => (worker, Offence::NotFinite),
            Swallowed { worker, .. } => (worker, Offence::Kept),
            Stage { .. } | Silent | Closed => return,
        };
        let member = members.iter().find(|member| member.name() == worker);
        let gone = gone.iter().find(|gone| gone.name == *worker);
        let (id, instance) = match (&member, gone) {
            (Some(member), _) => (member.offer.worker_id.clone(), member.offer.instance.clone()),
            (None, Some(gone)) => (gone.worker_id.clone(), gone.instance.clone()),
            (None, None) => return monitor.metrics.failed_worker(offence.name()), // The master itself.
        };
        self.note(worker, (&id, &instance), offence, &error.to_string(), (monitor, observer));
    }

    /// A worker could not be used for another pipeline.
    pub(crate) fn blame_start(
        &mut self,
        error: &cluster::Error,
        members: &[Member],
        monitor: &Monitor,
        observer: &dyn Observer,
    ) {
        let cluster::Error::Call { name, .. } = error else { return };
        let Some(member) = members.iter().find(|member| member.name() == name) else { return };
        let who = (&*member.offer.worker_id, &*member.offer.instance);
        self.note(name, who, Offence::Lost, &error.to_string(), (monitor, observer));
    }

    fn note(
        &mut self,
        name: &str,
        (worker_id, instance): (&str, &str),
        offence: Offence,
        reason: &str,
        (monitor, observer): (&Monitor, &dyn Observer),
    ) {
        let now = self.now();
        let consequence = {
            let mut known = self.known();
            if offence == Offence::Lost && known.is_told(instance, self.keeper, now) {
                return; // Each model that had layers there finds out by itself.
            }
            known.conduct.note(worker_id, instance, offence, reason, now)
        };
        monitor.metrics.failed_worker(offence.name());
        match consequence {
            Consequence::None => {}
            Consequence::Avoided(pause) => {
                warn!(worker = name, seconds = pause.as_secs_f64(), reason, "avoided for now");
            }
            Consequence::SetAside(pause) => {
                observer.tell(&Event::SetAside { worker: name, pause, reason });
            }
            Consequence::Quarantine(pause) => {
                error!(worker = name, seconds = pause.as_secs(), reason, "in quarantine");
                observer.tell(&Event::Quarantined { worker: name, pause, reason });
            }
        }
    }
}

impl Known {
    /// Whether another keeper noted this loss already; else it is this one that does.
    fn is_told(&mut self, instance: &str, keeper: u64, now: Duration) -> bool {
        self.lost.retain(|_, (_, at)| now.saturating_sub(*at) < SAME_LOSS);
        match self.lost.get(instance) {
            Some((by, _)) if *by != keeper => true,
            _ => {
                self.lost.insert(instance.to_owned(), (keeper, now));
                false
            }
        }
    }
}

/// A member that was let go because it was gone.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    name: String,
    worker_id: String,
    instance: String,
}

impl Gone {
    /// All members, in case that they are gone a moment later.
    pub(crate) fn of(members: &[Member]) -> Vec<Self> {
        let gone = |member: &Member| Self {
            name: member.name().to_owned(),
            worker_id: member.offer.worker_id.clone(),
            instance: member.offer.instance.clone(),
        };
        members.iter().map(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_models_lose_with_one_worker_is_one_loss() {
        let trust = Trust::new();
        let (one, other) = (trust.shared(), trust.shared());
        let told = |trust: &Trust, instance, seconds| {
            let now = Duration::from_secs(seconds);
            trust.known().is_told(instance, trust.keeper, now)
        };
        assert!(!told(&one, "a", 1), "the first to find out");
        assert!(told(&other, "a", 2));
        assert!(!told(&one, "a", 3), "it lost it once more");
        assert!(!told(&other, "b", 3), "another process");
        assert!(!told(&other, "a", 40), "that was long ago");
    }
}
