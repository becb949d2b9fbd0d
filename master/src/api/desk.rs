//! Where requests get their models: those that are loaded at once, another one when it is loaded, too, or in the place of one.

use std::collections::BTreeSet;
use std::convert::Infallible;
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
    /// Told when a loaded model is to stay for another time.
    changed: Notify,
}

struct State {
    is_open: bool,
    /// In the order in which they were loaded.
    given: Vec<Given>,
    /// Models that are not given any more while their last requests end.
    leaving: Vec<Leaving>,
    /// Models that are to go as soon as they are loaded, until somebody asks for them again.
    unwanted: BTreeSet<String>,
}

impl State {
    fn given(&mut self, name: &str) -> Option<&mut Given> {
        self.given.iter_mut().find(|given| given.served.name == name)
    }

    /// Somebody asks for the model of this name, which stays for `keep` from now on, or where that is not said for `usual`;
    /// and whether that is another time than before.
    fn ask(&mut self, name: &str, keep: Option<Keep>, usual: Keep) -> Option<(Arc<Served>, bool)> {
        if let Some(keep) = keep
            && let Some(leaving) = self.leaving.iter_mut().find(|one| one.name == name)
        {
            leaving.keep = keep; // Should it be given again.
        }
        let given = self.given(name)?;
        (given.used, given.asked) = (Instant::now(), Instant::now());
        let before = std::mem::replace(&mut given.keep, keep.unwrap_or(usual));
        Some((given.served.clone(), given.keep != before))
    }
}

/// A model that is given to whoever asks for it.
struct Given {
    served: Arc<Served>,
    keep: Keep,
    /// When it was last seen in use.
    used: Instant,
    /// When a request last asked for it.
    asked: Instant,
}

/// One that is not any more.
struct Leaving {
    name: String,
    served: Weak<Served>,
    /// How long it was to stay.
    keep: Keep,
}

/// What is known of a model that may have to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Whether a request has it now.
    pub in_use: bool,
    /// Since when it was not used.
    pub used: Instant,
}

impl Given {
    fn new(served: Arc<Served>, keep: Keep) -> Self {
        let now = Instant::now();
        Self { served, keep, used: now, asked: now }
    }

    fn is_used(&self) -> bool {
        Arc::strong_count(&self.served) > 1
    }

    /// How long it stays if nobody uses it from now on; `None` if that is for ever.
    fn left(&mut self) -> Option<Duration> {
        if self.is_used() {
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
        let (given, leaving, unwanted) = (Vec::new(), Vec::new(), BTreeSet::new());
        let state = Mutex::new(State { is_open: false, given, leaving, unwanted });
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

    /// The models that are loaded, and given to whoever asks for them.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        self.state().given.iter().map(|given| given.served.clone()).collect()
    }

    /// The model of this name, if it is loaded.
    pub fn loaded_as(&self, name: &str) -> Option<Arc<Served>> {
        self.state().given(name).map(|given| given.served.clone())
    }

    /// The name of the loaded model that was used last; of several that are used now, that which was asked for last.
    pub fn last_used(&self) -> Option<String> {
        let (state, now) = (self.state(), Instant::now());
        // Those that are in use now are used at the same time.
        let used = |given: &Given| if given.is_used() { now } else { given.used };
        let last = state.given.iter().max_by_key(|given| (used(given), given.asked));
        last.map(|given| given.served.name.clone())
    }

    /// The loaded models, those first that nobody uses, and of these that first which was not used for the longest time.
    pub fn guests(&self) -> Vec<Guest> {
        let guest = |given: &mut Given| {
            given.left();
            let name = given.served.name.clone();
            Guest { name, in_use: given.is_used(), used: given.used }
        };
        let mut guests: Vec<Guest> = self.state().given.iter_mut().map(guest).collect();
        guests.sort_by_key(|guest| (guest.in_use, guest.used));
        guests
    }

    /// How long the loaded model of this name stays if nobody uses it from now on; for ever if there is none.
    pub fn keeps(&self, name: &str) -> Option<Duration> {
        self.state().given(name).and_then(Given::left)
    }

    /// How busy the loaded models are, and those whose last requests end; none where there is none.
    pub fn load(&self) -> Option<Load> {
        let state = self.state();
        let given = state.given.iter().map(|given| given.served.scheduler.load());
        let last = state.leaving.iter().filter_map(|one| one.served.upgrade());
        given.chain(last.map(|served| served.scheduler.load())).reduce(Load::and)
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
        let _waits = crate::running::enter(&name, 1, 0);
        self.state().unwanted.remove(&name);
        self.wants.send(Want { model, keep, answer }).map_err(|_| ApiError::Closed)?;
        let answered = answered.await.map_err(|_| ApiError::Closed)?;
        answered.map_err(|why| ApiError::NotLoaded { model: name, why })
    }

    /// The model of this name if it is loaded; it stays for `keep` from now on.
    pub fn given(&self, name: &str, keep: Option<Keep>) -> Option<Arc<Served>> {
        let asked = self.state().ask(name, keep, self.usual);
        asked.map(|(served, is_other)| {
            self.tell(is_other);
            served
        })
    }

    /// Lets the model of this name go once nobody uses it; one that is not loaded yet, once those who wait for it had it.
    pub fn let_go(&self, name: &str) {
        // As one change: it may be given by somebody else meanwhile.
        let mut state = self.state();
        let asked = state.ask(name, Some(Keep::NOT), self.usual);
        if asked.is_none() {
            state.unwanted.insert(name.to_owned());
        }
        drop(state);
        self.tell(asked.is_some_and(|(_, is_other)| is_other));
    }

    /// Those who waited for the model of this name have it.
    pub fn all_have(&self, name: &str) {
        let mut state = self.state();
        if !state.unwanted.remove(name) {
            return;
        }
        let asked = state.ask(name, Some(Keep::NOT), self.usual);
        drop(state);
        self.tell(asked.is_some_and(|(_, is_other)| is_other));
    }

    /// Tells who waits for models to be unused that one is to stay for another time.
    fn tell(&self, is_other: bool) {
        if is_other {
            self.changed.notify_one();
        }
    }

    /// Gives this model to whoever asks for it from now on.
    pub fn give(&self, served: Arc<Served>) {
        self.state().given.push(Given::new(served, self.usual));
        self.changed.notify_one();
    }

    /// Gives the model of this name to nobody any more. Who has it keeps it.
    pub fn withdraw(&self, name: &str) {
        let mut state = self.state();
        let Some(place) = state.given.iter().position(|one| one.served.name == name) else {
            return;
        };
        let given = state.given.remove(place);
        state.leaving.retain(|one| one.served.strong_count() > 0 && one.name != name);
        let served = Arc::downgrade(&given.served);
        state.leaving.push(Leaving { name: name.to_owned(), served, keep: given.keep });
        drop(state);
        drop(given); // Perhaps nobody else has it: not while others wait for the state.
    }

    /// Gives the model of this name again that was withdrawn. False if nobody had it any more.
    pub fn give_again(&self, name: &str) -> bool {
        let mut state = self.state();
        let Some(place) = state.leaving.iter().position(|one| one.name == name) else {
            return false;
        };
        let Leaving { served, keep, .. } = state.leaving.remove(place);
        let Some(served) = served.upgrade() else { return false };
        state.given.push(Given::new(served, keep));
        self.changed.notify_one();
        true
    }

    /// Sees for as long as it is polled which models are used, where nobody waits for one that is not.
    pub async fn watch(&self) -> Infallible {
        loop {
            self.state().given.iter_mut().for_each(|given| _ = given.left());
            tokio::time::sleep(LOOK_USED).await;
        }
    }

    /// Completes with the name of a loaded model that was not used for as long as it is to stay.
    pub async fn unused(&self) -> String {
        loop {
            let left: Vec<(String, bool, Option<Duration>)> = {
                let mut state = self.state();
                let left =
                    |given: &mut Given| (given.served.name.clone(), given.is_used(), given.left());
                state.given.iter_mut().map(left).collect()
            };
            let over = left.iter().find(|(_, used, left)| !used && *left == Some(Duration::ZERO));
            if let Some((name, ..)) = over {
                return name.clone();
            }
            match left.iter().any(|(.., left)| left.is_some()) {
                // Nobody tells when a use ends: it is looked for.
                true => tokio::time::sleep(LOOK_USED).await,
                false => self.changed.notified().await,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
