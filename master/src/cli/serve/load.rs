//! From a model at hand to one that is served: planned, pushed, loaded, and told of.
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cake_checkpoint::Checkpoint;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use crate::api::{self, Served};
use crate::board::Board;
use crate::cli::args::SampleArgs;
use crate::cli::told::{Words, warn};
use crate::cli::{Error, announce};
use crate::cluster::Error::NobodyThere;
use crate::cluster::{self, Missing, Whereabouts};
use crate::deployment;
use crate::deployment::keeper::{Keeper, left_out};
use crate::deployment::trust::Trust;
use crate::deployment::{PlanRequest, master_name, prepare};
use crate::monitor::Monitor;
use crate::pipeline::OpenError;
use crate::scheduler::{Limits, OnLoss, Scheduler};
use crate::service::{Failed, Load, Loaded};
use crate::shelf::{About, AtHand, WhyNot};
use crate::state::State;
use crate::text::Text;

/// How often workers are asked who they are while no model is loaded: each time, one looks through its store.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Loads models over the same workers, all as the same arguments say.
pub(super) struct Loader {
    /// What is asked of each plan.
    pub(super) request: PlanRequest,
    pub(super) cluster: Whereabouts,
    /// How members have behaved, whichever model they had layers of.
    pub(super) trust: Trust,
    /// How many requests may wait.
    pub(super) queue: usize,
    pub(super) default_max_tokens: Option<NonZeroUsize>,
    pub(super) allow_special_tokens: bool,
    pub(super) spares: bool,
    /// How long requests may wait where a worker was lost.
    pub(super) grace: Duration,
}

impl Load for Loader {
    fn check(&self, model: &AtHand) -> Result<(), WhyNot> {
        block_in_place(|| self.opens(model)).map_err(|error| Arc::new(error) as WhyNot)
    }

    async fn load(&mut self, model: &AtHand, monitor: &Arc<Monitor>) -> Result<Loaded, Failed> {
        // A worker that is lost may be away for longer than the next model can wait.
        let cluster = self.cluster.some_suffice();
        let mut loaded = self.load_over(model, &cluster, monitor).await;
        if loaded.as_ref().is_err_and(was_forestalled) {
            loaded = self.load_over(model, &cluster, monitor).await;
        }
        self.request.reprobe = false; // Once is enough.
        self.request.hurry = true;
        loaded.map_err(|error| {
            let is_crowded = is_crowded(&error);
            let why = Arc::new(error) as WhyNot;
            if is_crowded { Failed::Crowded(why) } else { Failed::Never(why) }
        })
    }

    async fn look_out(&self, board: &Board) -> Infallible {
        loop {
            board.awaits(self.cluster.ask(&master_name()).await);
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

/// Whether it is the models that are loaded which leave no room.
fn is_crowded(error: &Error) -> bool {
    use deployment::Error::{Cluster, Crowded};
    match error {
        Error::Deployment(Crowded(_)) => true,
        Error::Deployment(Cluster(NobodyThere(missing))) => missing.iter().any(Missing::is_full),
        error => was_forestalled(error),
    }
}

/// Whether another model took room between the plan and the load: what it left may do.
fn was_forestalled(error: &Error) -> bool {
    use deployment::Error::{Open, Shared};
    let Error::Deployment(error) = error else { return false };
    matches!(error, Shared(_) | Open(OpenError::Cluster(cluster::Error::Crowded { .. })))
}

impl Loader {
    /// Loads the only model that there is, for which all workers that were named have to be there.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) async fn first(
        &mut self,
        model: &AtHand,
        monitor: &Arc<Monitor>,
    ) -> Result<Loaded, Error> {
        let loaded = self.load_over(model, &self.cluster, monitor).await;
        self.request.reprobe = false;
        self.request.hurry = true; // Whatever is loaded from now on, somebody waits for.
        loaded
    }

    /// Looks whether there is a model, with texts, for which the context that was asked for is not too long.
    fn opens(&self, model: &AtHand) -> Result<(), Error> {
        let checkpoint = Checkpoint::open(&model.model)?;
        self.request.promise(&checkpoint)?;
        Text::of(&checkpoint.texts)?;
        Ok(())
    }

    /// Plans, pushes and loads, and tells the monitor how far it is.
    async fn load_over(
        &self,
        model: &AtHand,
        cluster: &Whereabouts,
        monitor: &Arc<Monitor>,
    ) -> Result<Loaded, Error> {
        let Self { request, .. } = self;
        let trust = self.trust.shared();
        let told = Arc::new(Words::kept(&monitor.chronicle));
        let mut prepared = prepare(State::open()?, &model.model, cluster, request, told).await?;
        // Who is set aside, or is to be free, is so whatever is loaded.
        let left_out = left_out(&trust, &prepared);
        if left_out.all().iter().any(|name| prepared.has_layers(name)) {
            prepared.plan_around(request, &left_out).await?;
        }
        prepared.monitor = Some(monitor.clone());
        monitor.planned(prepared.planned());
        let checkpoint = &prepared.model.checkpoint;
        let text = block_in_place(|| Text::of(&checkpoint.texts))?;
        warn(&text.warnings);
        let about = block_in_place(|| About::of(&prepared.model))?;
        let defaults = api::default_sampling(&checkpoint.generation);
        let stop_ids = Arc::new(SampleArgs::default().stop_ids(checkpoint, text.eos_id()));
        let context = prepared.promise().context;
        let usual = api::default_max_tokens(&checkpoint.generation, context);
        let max_tokens = self.default_max_tokens.map_or(usual, NonZeroUsize::get);
        let tell = announce::tell_of(&prepared, false);
        let mut pushed = announce::announce_and_push(&prepared, tell).await?;
        monitor.loading();
        let (pipeline, ends) = prepared.load(&mut pushed).await?;
        monitor.metrics.pushed(pushed.pushed_bytes, pushed.reused_bytes);
        monitor.wired(pipeline.stages());
        let (broken, paces) = (pipeline.watch(), pipeline.paces());
        let lateness = pipeline.lateness();
        let limits = Limits::of(prepared.promise(), prepared.chunk(), self.queue);
        let metrics = monitor.metrics.clone();
        let scheduler = Scheduler::start(pipeline, ends, limits, OnLoss::Wait, metrics);
        let keeper = Keeper {
            prepared,
            cluster: self.cluster.clone(),
            spares: self.spares,
            request: request.clone(),
            grace: self.grace,
            scheduler: scheduler.clone(),
            monitor: monitor.clone(),
            trust,
            broken,
            paces,
            lateness,
        };
        let (in_use, used) = oneshot::channel();
        let served = Arc::new(Served {
            name: model.name.clone(),
            created: api::unix_seconds(),
            about,
            text: Arc::new(text.allowing_special_tokens(self.allow_special_tokens)),
            turns: api::Turns::default(),
            scheduler,
            defaults,
            max_tokens,
            stop_ids,
            grammars: OnceLock::new(),
            used: in_use,
        });
        Ok(Loaded { served, keeper, used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_makes_room_where_it_is_in_the_way_and_only_there() {
        let text = || "attic".to_owned();
        let nobody = |why| {
            let missing = Missing { name: text(), address: text(), last_seen: None, why };
            Error::Deployment(NobodyThere(vec![missing]).into())
        };
        let full = || cluster::Error::Full { name: text(), address: text(), reason: text() };
        let held = cluster::Error::Held { name: text(), address: text(), reason: text() };
        assert!(is_crowded(&nobody(full())) && !was_forestalled(&nobody(full())));
        assert!(!is_crowded(&nobody(held)), "by another master");
        let open = |error| Error::Deployment(OpenError::Cluster(error).into());
        let crowded = open(cluster::Error::Crowded { name: text(), reason: text() });
        assert!(is_crowded(&crowded) && was_forestalled(&crowded));
        let failed = open(cluster::Error::Call { name: text(), action: "load", reason: text() });
        assert!(!is_crowded(&failed));
    }
}
