//! Loads the models that requests wait for, beside those that are loaded where there is room, else in the place of others.
//!
//! ```text
//!            somebody wants it       there is room
//!   at hand ──────────────────▶ loading ─────────▶ loaded ◀──────────────────────┐
//!      ▲                         │   ▲                │                          │ who wants the other one is gone
//!      ├────── it failed ────────┘   │                │ another one needs its room, and it was
//!      │                             │ there is none: │ not used for longer than others
//!      │                             │ another leaves ▼                          │
//!      ├──── unused for so long ─────│──────────── leaving ──────────────────────┘
//!      └─────────────────────────────└────────────────┘ the last requests have ended
//! ```
use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::queue::Queue;
use crate::api::{Desk, Served, Want};
use crate::board::Board;
use crate::chronicle::Kind;
use crate::deployment::keeper::Keeper;
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

    /// Loads it beside whatever is loaded, and tells `monitor` how far it is.
    ///
    /// # Errors
    /// Why it cannot be; nothing is held then.
    async fn load(&mut self, model: &AtHand, monitor: &Arc<Monitor>) -> Result<Loaded, Failed>;

    /// Where nothing is loaded, tells `board` for as long as it is polled who is there. May be dropped at any time.
    async fn look_out(&self, board: &Board) -> Infallible;
}

/// Why a model is not loaded.
pub(crate) enum Failed {
    /// Others that are loaded take the room that it needs.
    Crowded(WhyNot),
    /// It cannot be, whoever leaves.
    Never(WhyNot),
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
    monitor: Arc<Monitor>,
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

    /// Lets all of it go.
    async fn put_away(self) {
        let Self { scheduler, mut keeper, stop } = self;
        let ended = scheduler.ended();
        drop((stop, scheduler));
        match keeper.join_next().await {
            Some(Ok(keeper)) => keeper.put_away().await,
            // It panicked: of what it held nothing is left once the pipeline is closed, too.
            Some(Err(_)) | None => _ = ended.await,
        }
    }
}

/// Loads models, and puts them away.
pub(crate) struct Changer<L> {
    desk: Arc<Desk>,
    queue: Queue,
    board: Arc<Board>,
    load: L,
    running: Vec<Running>,
}

/// What comes next.
enum Next {
    Wanted(Arc<AtHand>),
    /// Nobody used the loaded model of this name for as long as it was to stay.
    Unused(String),
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
        board: Arc<Board>,
        load: L,
    ) -> Self {
        board.idle(None);
        Self { desk, queue: Queue::new(wanted), board, load, running: Vec::new() }
    }

    /// The same where a model is loaded, of which this monitor tells.
    pub(crate) fn with(self, monitor: Arc<Monitor>, loaded: Loaded) -> Self {
        let mut changer = self;
        changer.put_out(monitor, loaded);
        changer
    }

    /// Does what requests need until nothing can be answered any more.
    pub(crate) async fn run(mut self) -> Broken {
        loop {
            let done = match self.next().await {
                Next::Wanted(model) => self.change(&model).await,
                Next::Unused(name) => self.leave(&name, None).await.map(|_| ()),
                Next::Broken(why) => Err(why),
                Next::Over => std::future::pending().await,
            };
            if let Err(broken) = done {
                return broken;
            }
        }
    }

    async fn next(&mut self) -> Next {
        let Self { running, queue, desk, board, load } = self;
        let is_empty = running.is_empty();
        tokio::select! {
            why = broken(running) => Next::Broken(why),
            model = queue.next() => model.map_or(Next::Over, Next::Wanted),
            name = desk.unused() => Next::Unused(name),
            never = load.look_out(board), if is_empty => match never {},
        }
    }

    /// Sees to it that the model is loaded, and tells those who wait for it.
    async fn change(&mut self, model: &AtHand) -> Result<(), Broken> {
        let name = &model.name;
        if self.running.iter().any(|running| running.name == *name) {
            self.answer(name);
            return Ok(());
        }
        if let Err(why) = self.load.check(model) {
            self.refuse(name, &why);
            return Ok(());
        }
        while self.queue.is_wanted(name) {
            info!(model = %name, "a model is being loaded");
            let monitor = self.board.begins(name);
            let loaded = tokio::select! {
                loaded = self.load.load(model, &monitor) => loaded,
                never = self.queue.tend() => match never {},
                never = self.desk.watch() => match never {},
            };
            let failed = match loaded {
                Ok(loaded) => {
                    self.put_out(monitor, loaded);
                    self.answer(name);
                    return Ok(());
                }
                Err(failed) => failed,
            };
            self.board.ends(&monitor);
            let guest = self.desk.guests().into_iter().next();
            match (failed, guest) {
                (Failed::Crowded(why), Some(guest)) => {
                    info!(model = %name, leaves = %guest.name, %why, "a model makes room");
                    if !self.leave(&guest.name, Some(name)).await? {
                        return Ok(());
                    }
                }
                (Failed::Crowded(why) | Failed::Never(why), _) => {
                    self.board.idle(Some(&format!("{name} could not be loaded: {why}")));
                    self.refuse(name, &why);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Gives what is loaded to whoever asks for it.
    fn put_out(&mut self, monitor: Arc<Monitor>, Loaded { served, keeper, used }: Loaded) {
        monitor.ready();
        self.board.awaits(Vec::new()); // Its keeper looks for them from now on.
        self.board.chronicle.add(Kind::Service, format!("{} is ready", served.name));
        let (name, kept) = (served.name.clone(), Kept::new(keeper));
        self.running.push(Running { name, monitor, kept, used });
        self.desk.give(served);
    }

    /// Gives the loaded model of this name to nobody any more, waits until who has it is done, and lets all of it go. False
    /// if the model that shall have its room is not wanted any more, and it is given again.
    async fn leave(&mut self, name: &str, successor: Option<&str>) -> Result<bool, Broken> {
        let Some(place) = self.running.iter().position(|running| running.name == name) else {
            return Ok(true);
        };
        self.desk.withdraw(name);
        let Running { kept, used, .. } = &mut self.running[place];
        let unwanted = async {
            match successor {
                Some(name) => self.queue.nobody_wants(name).await,
                None => match self.queue.tend().await {},
            }
        };
        tokio::select! {
            never = self.desk.watch() => match never {},
            _ = used => {}
            why = kept.broken() => return Err(why),
            () = unwanted => {
                if self.desk.give_again(name) {
                    return Ok(false);
                }
            }
        }
        let Running { name, monitor, kept, .. } = self.running.remove(place);
        kept.put_away().await;
        self.board.ends(&monitor);
        self.board.idle(None);
        info!(model = %name, "a model is put away");
        self.board.chronicle.add(Kind::Service, format!("{name} is put away"));
        Ok(true)
    }

    /// Gives the loaded model to those who wait for it.
    fn answer(&mut self, name: &str) {
        let desk = self.desk.clone();
        let gone = || Arc::new(scheduler::Error::Ended("it is gone again".into())) as WhyNot;
        self.queue.answer(name, |want| desk.given(name, want.keep).ok_or_else(gone));
        desk.all_have(name);
    }

    /// Tells those who wait for a model that they wait in vain.
    fn refuse(&mut self, name: &str, why: &WhyNot) {
        warn!(model = %name, %why, "a model cannot be loaded");
        self.board.chronicle.add(Kind::Warning, format!("{name} could not be loaded: {why}"));
        self.queue.answer(name, |_| Err(why.clone()));
    }
}

/// Completes when one of them can answer nothing any more, with why. May be dropped before.
async fn broken(running: &mut [Running]) -> Broken {
    let all: Vec<_> = running.iter_mut().map(|it| Box::pin(it.kept.broken())).collect();
    match all.is_empty() {
        true => std::future::pending().await,
        false => futures_util::future::select_all(all).await.0,
    }
}
