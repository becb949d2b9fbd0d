//! Where requests get their models: the loaded one at once, another one when it is loaded in its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::error::ApiError;
use super::served::Served;
use crate::scheduler::{Load, Refusal};
use crate::shelf::{AtHand, Keep, WhyNot};

/// How often it looks whether a model that is to go is still used.
const LOOK_USED: Duration = Duration::from_millis(100);

/// A request that waits for a model.
pub struct Want {
    /// Which.
    pub model: Arc<AtHand>,
    /// How long the model shall stay after its use; as long as usual if it does not say.
    pub keep: Option<Keep>,
    /// Who waits; closed once nobody does.
    pub answer: oneshot::Sender<Result<Arc<Served>, WhyNot>>,
}

/// Gives requests their models.
pub struct Desk {
    state: Mutex<State>,
    wants: mpsc::UnboundedSender<Want>,
    /// A place for each request that may wait.
    places: Semaphore,
    /// How many may.
    most: usize,
    /// How long models stay where requests do not say.
    usual: Keep,
    /// Told when the loaded model is to stay for another time.
    changed: Notify,
}

struct State {
    is_open: bool,
    given: Option<Given>,
    /// The model that was given last, also while its last requests end.
    last: Weak<Served>,
    /// How long that was to stay when it was withdrawn.
    last_keep: Keep,
}

impl State {
    /// Whether the model of this name was given last and is not any more.
    fn is_leaving(&self, name: &str) -> bool {
        self.given.is_none() && self.last.upgrade().is_some_and(|served| served.name == name)
    }
}

/// The model that is given to whoever asks for it.
struct Given {
    served: Arc<Served>,
    keep: Keep,
    /// When it was last seen in use.
    used: Instant,
}

impl Given {
    /// How long it stays if nobody uses it from now on; `None` if that is for ever.
    fn left(&mut self) -> Option<Duration> {
        if Arc::strong_count(&self.served) > 1 {
            self.used = Instant::now();
        }
        self.keep.left(self.used.elapsed())
    }
}

impl Desk {
    /// A desk at which so many requests may wait, one at least, as else nothing would ever be loaded; and what tells of
    /// them. It is not open yet. Models stay for `usual`.
    pub fn new(most: usize, usual: Keep) -> (Self, mpsc::UnboundedReceiver<Want>) {
        let (wants, wanted) = mpsc::unbounded_channel(); // Bounded by the places.
        let (given, last, last_keep) = (None, Weak::new(), usual);
        let state = Mutex::new(State { is_open: false, given, last, last_keep });
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let places = Semaphore::new(most);
        (Self { state, wants, places, most, usual, changed: Notify::new() }, wanted)
    }

    /// Models can be had from now on.
    pub fn open(&self) {
        self.state().is_open = true;
    }

    /// Whether models can be had.
    pub fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// The model that is loaded, and given to whoever asks for it.
    pub fn loaded(&self) -> Option<Arc<Served>> {
        self.state().given.as_ref().map(|given| given.served.clone())
    }

    /// How long the loaded model stays if nobody uses it from now on; for ever if there is none.
    pub fn keeps(&self) -> Option<Duration> {
        self.state().given.as_mut().and_then(Given::left)
    }

    /// How busy the loaded model is, or the one whose last requests end.
    pub fn load(&self) -> Option<Load> {
        let last = self.state().last.upgrade();
        last.map(|served| served.scheduler.load())
    }

    /// The model, once it is loaded. Whoever is dropped waits no longer.
    ///
    /// # Errors
    /// [`ApiError::NotLoaded`] if it cannot be loaded, [`ApiError::Refused`] if as many wait as may.
    pub(super) async fn take(
        &self,
        model: Arc<AtHand>,
        keep: Option<Keep>,
    ) -> Result<Arc<Served>, ApiError> {
        if let Some(served) = self.given(&model.name, keep) {
            return Ok(served);
        }
        let busy = |_| Refusal::Busy { waiting: self.most };
        let _place = self.places.try_acquire().map_err(busy)?;
        let (answer, answered) = oneshot::channel();
        let name = model.name.clone();
        self.wants.send(Want { model, keep, answer }).map_err(|_| ApiError::Closed)?;
        let answered = answered.await.map_err(|_| ApiError::Closed)?;
        answered.map_err(|why| ApiError::NotLoaded { model: name, why })
    }

    /// The model of this name if it is loaded; it stays for `keep` from now on.
    pub fn given(&self, name: &str, keep: Option<Keep>) -> Option<Arc<Served>> {
        let mut state = self.state();
        if let Some(keep) = keep.filter(|_| state.is_leaving(name)) {
            state.last_keep = keep; // Should it be given again.
        }
        let given = state.given.as_mut().filter(|given| given.served.name == name)?;
        given.used = Instant::now();
        let keep = keep.unwrap_or(self.usual);
        if keep != given.keep {
            given.keep = keep;
            self.changed.notify_one();
        }
        Some(given.served.clone())
    }

    /// Gives this model to whoever asks for it from now on.
    pub fn give(&self, served: Arc<Served>) {
        let mut state = self.state();
        state.last = Arc::downgrade(&served);
        state.given = Some(Given { served, keep: self.usual, used: Instant::now() });
    }

    /// Gives the model to nobody any more. Who has it keeps it.
    pub fn withdraw(&self) {
        let mut state = self.state();
        let given = state.given.take();
        state.last_keep = given.as_ref().map_or(state.last_keep, |given| given.keep);
        drop(state);
        drop(given); // Perhaps nobody else has it: not while others wait for the state.
    }

    /// Gives the model again that was withdrawn. False if nobody had it any more.
    pub fn give_again(&self) -> bool {
        let mut state = self.state();
        let Some(served) = state.last.upgrade() else { return false };
        state.given = Some(Given { served, keep: state.last_keep, used: Instant::now() });
        true
    }

    /// Completes when the loaded model was not used for as long as it is to stay.
    pub async fn unused(&self) {
        loop {
            match self.keeps() {
                Some(Duration::ZERO) if !self.is_used() => return,
                // Nobody tells when a use ends: it is looked for.
                Some(_) => tokio::time::sleep(LOOK_USED).await,
                None => self.changed.notified().await,
            }
        }
    }

    fn is_used(&self) -> bool {
        let state = self.state();
        state.given.as_ref().is_some_and(|given| Arc::strong_count(&given.served) > 1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
