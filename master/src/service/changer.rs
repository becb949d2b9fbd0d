//! Loads the models that requests wait for, one in the place of the other.
//!
//! ```text
//!             somebody wants one                    loaded
//!   nothing ──────────────────────▶ loading ───────────────▶ one model ──┐
//!      ▲                             │    ▲                      │       │ somebody wants another one, which opens:
//!      ├──────── it failed ──────────┘    │                      ▼       │ the last requests end
//!      ├───────── unused for so long ─────│─────────────── leaving ◀─────┘
//!      │                                  └─────────────────────┘│
//!      └─────────────────────────────────────────────────────────┘ who wants the other one is gone: one model again
//! ```
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::queue::Queue;
use crate::api::{Desk, Served, Want};
use crate::chronicle::Kind;
use crate::deployment::keeper::Keeper;
use crate::deployment::trust::Trust;
use crate::monitor::Monitor;
use crate::scheduler::{self, Scheduler};
use crate::shelf::{AtHand, WhyNot};

/// Knows how models are loaded.
pub(crate) trait Load {
    /// Looks whether the model can be opened, before another one leaves for it.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, model: &AtHand) -> Result<(), WhyNot>;

    /// Loads it, where members that did wrong get no layers if `trust` says so.
    ///
    /// # Errors
    /// Why it cannot be; nothing is held then.
    async fn load(&mut self, model: &AtHand, trust: &Trust) -> Result<Loaded, WhyNot>;
}

/// A model that is loaded.
pub(crate) struct Loaded {
    /// As requests use it.
    pub served: Arc<Served>,
    /// What keeps it going.
    pub keeper: Keeper,
    /// Ends when no request uses it any more.
    pub used: oneshot::Receiver<()>,
}

/// What is loaded, without a use of it that would keep it.
struct Running {
    name: String,
    kept: Kept,
    used: oneshot::Receiver<()>,
}

/// A scheduler, and its keeper, which ends when it is to stop, or with the scheduler.
struct Kept {
    scheduler: Scheduler,
    keeper: JoinSet<Keeper>,
    stop: oneshot::Sender<()>,
}

impl Kept {
    fn new(keeper: Keeper) -> Self {
        let (stop, stopped) = oneshot::channel();
        let scheduler = keeper.scheduler.clone();
        Self { scheduler, keeper: JoinSet::from_iter([keeper.run(stopped)]), stop }
    }

    /// Completes when nothing can be answered any more, with why. May be dropped before.
    async fn broken(&mut self) -> Broken {
        tokio::select! {
            why = self.scheduler.ended() => why,
            keeper = self.keeper.join_next() => match keeper {
                Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                Some(Ok(_)) | None => self.scheduler.ended().await,
            },
        }
    }

    /// Lets all of it go; returns how members behaved.
    async fn put_away(self) -> Trust {
        let Self { scheduler, mut keeper, stop } = self;
        let ended = scheduler.ended();
        drop((stop, scheduler));
        match keeper.join_next().await {
            Some(Ok(keeper)) => keeper.put_away().await,
            // It panicked: of what it held nothing is left once the pipeline is closed, too.
            Some(Err(_)) | None => {
                ended.await;
                Trust::new()
            }
        }
    }
}

/// Loads models, and puts them away.
pub(crate) struct Changer<L> {
    desk: Arc<Desk>,
    queue: Queue,
    monitor: Arc<Monitor>,
    load: L,
    running: Option<Running>,
    /// How members have behaved, while no keeper knows.
    trust: Trust,
}

/// What comes next.
enum Next {
    Wanted(Arc<AtHand>),
    /// Nobody used the loaded model for so long.
    Unused,
    /// Nothing can be answered any more.
    Broken(Broken),
    /// The desk is gone.
    Over,
}

/// Nothing can be answered any more, for this reason.
type Broken = scheduler::Error;

impl<L: Load> Changer<L> {
    /// Of a desk and who waits at it, where nothing is loaded.
    pub(crate) fn without(
        desk: Arc<Desk>,
        wanted: mpsc::UnboundedReceiver<Want>,
        monitor: Arc<Monitor>,
        load: L,
    ) -> Self {
        monitor.idle(None);
        Self::of(desk, wanted, monitor, load)
    }

    /// The same where a model is loaded.
    pub(crate) fn with(
        desk: Arc<Desk>,
        wanted: mpsc::UnboundedReceiver<Want>,
        monitor: Arc<Monitor>,
        load: L,
        loaded: Loaded,
    ) -> Self {
        let mut changer = Self::of(desk, wanted, monitor, load);
        changer.put_out(loaded);
        changer
    }

    fn of(
        desk: Arc<Desk>,
        wanted: mpsc::UnboundedReceiver<Want>,
        monitor: Arc<Monitor>,
        load: L,
    ) -> Self {
        let queue = Queue::new(wanted);
        Self { desk, queue, monitor, load, running: None, trust: Trust::new() }
    }

    /// Does what requests need until nothing can be answered any more.
    pub(crate) async fn run(mut self) -> Broken {
        loop {
            let done = match self.next().await {
                Next::Wanted(model) => self.change(&model).await,
                Next::Unused => self.leave().await.map(|()| self.monitor.idle(None)),
                Next::Broken(why) => Err(why),
                Next::Over => std::future::pending().await,
            };
            if let Err(broken) = done {
                return broken;
            }
        }
    }

    async fn next(&mut self) -> Next {
        let wanted = |model: Option<_>| model.map_or(Next::Over, Next::Wanted);
        match &mut self.running {
            None => wanted(self.queue.next().await),
            Some(running) => tokio::select! {
                why = running.kept.broken() => Next::Broken(why),
                model = self.queue.next() => wanted(model),
                () = self.desk.unused() => Next::Unused,
            },
        }
    }

    /// Sees to it that the model is loaded, and tells those who wait for it.
    async fn change(&mut self, model: &AtHand) -> Result<(), Broken> {
        let name = &model.name;
        if self.running.as_ref().is_some_and(|running| running.name == *name) {
            self.answer(name);
            return Ok(());
        }
        if let Err(why) = self.load.check(model) {
            self.refuse(name, &why);
            return Ok(());
        }
        if !self.let_finish(Some(name)).await? {
            return Ok(());
        }
        self.put_away().await;
        if !self.queue.is_wanted(name) {
            self.monitor.idle(None);
            return Ok(());
        }
        info!(model = %name, "a model is being loaded");
        self.monitor.begins(name);
        let loaded = tokio::select! {
            loaded = self.load.load(model, &self.trust) => loaded,
            never = self.queue.tend() => match never {},
        };
        match loaded {
            Ok(mut loaded) => {
                loaded.keeper.trust = std::mem::replace(&mut self.trust, Trust::new());
                self.put_out(loaded);
                self.answer(name);
            }
            Err(why) => {
                self.monitor.idle(Some(&format!("{name} could not be loaded: {why}")));
                self.refuse(name, &why);
            }
        }
        Ok(())
    }

    /// Gives what is loaded to whoever asks for it.
    fn put_out(&mut self, Loaded { served, keeper, used }: Loaded) {
        self.running = Some(Running { name: served.name.clone(), kept: Kept::new(keeper), used });
        self.monitor.ready();
        self.monitor.chronicle.add(Kind::Service, format!("{} is ready", served.name));
        self.desk.give(served);
    }

    /// Puts the loaded model away once its last requests have ended.
    async fn leave(&mut self) -> Result<(), Broken> {
        self.let_finish(None).await?;
        self.put_away().await;
        Ok(())
    }

    /// Gives the loaded model to nobody any more, and waits until who has it is done. False if the model that shall take
    /// its place is not wanted any more, and it is given again.
    async fn let_finish(&mut self, successor: Option<&str>) -> Result<bool, Broken> {
        let Some(Running { kept, used, .. }) = &mut self.running else { return Ok(true) };
        self.desk.withdraw();
        let unwanted = async {
            match successor {
                Some(name) => self.queue.nobody_wants(name).await,
                None => match self.queue.tend().await {},
            }
        };
        tokio::select! {
            _ = used => Ok(true),
            why = kept.broken() => Err(why),
            () = unwanted => Ok(!self.desk.give_again()),
        }
    }

    /// Lets all go that was loaded.
    async fn put_away(&mut self) {
        if let Some(Running { name, kept, .. }) = self.running.take() {
            self.trust = kept.put_away().await;
            info!(model = %name, "a model is put away");
            self.monitor.chronicle.add(Kind::Service, format!("{name} is put away"));
        }
    }

    /// Gives the loaded model to those who wait for it.
    fn answer(&mut self, name: &str) {
        let desk = self.desk.clone();
        let gone = || Arc::new(scheduler::Error::Ended("it is gone again".into())) as WhyNot;
        self.queue.answer(name, |want| desk.given(name, want.keep).ok_or_else(gone));
    }

    /// Tells those who wait for a model that they wait in vain.
    fn refuse(&mut self, name: &str, why: &WhyNot) {
        warn!(model = %name, %why, "a model cannot be loaded");
        self.monitor.chronicle.add(Kind::Warning, format!("{name} could not be loaded: {why}"));
        self.queue.answer(name, |_| Err(why.clone()));
    }
}
