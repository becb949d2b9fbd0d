//! What a server has from the start, and how its requests come to their models.

use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio::sync::Semaphore;
use tokio::sync::watch::Receiver;
use tokio::task::block_in_place;

use super::bodies::Bodies;
use super::desk::Desk;
use super::error::ApiError;
use super::responses::Store;
use super::served::Served;
use crate::board::Board;
use crate::deployment::fits::{Fit, Fits, Offers};
use crate::membership::Membership;
use crate::monitor::Phase;
use crate::shelf::{AtHand, Keep, Shelf};

/// A server, which answers from the start: its models come later.
pub struct Server {
    /// What is shown and counted.
    pub board: Arc<Board>,
    /// Keys of which a request must bring one; none are asked for if empty.
    pub keys: Vec<String>,
    /// Whether requests with different keys share what their prompts begin with.
    pub share_prefixes: bool,
    /// Origins whose pages may ask beside its own; `*` stands for all.
    pub origins: Vec<String>,
    /// The models at hand.
    pub shelf: Arc<Shelf>,
    /// Which of them would fit.
    pub(crate) fits: Fits,
    /// Where requests get theirs.
    pub desk: Arc<Desk>,
    /// Who fetches one from the Hub: one at a time.
    pub pulls: Arc<Semaphore>,
    /// When it ends.
    pub stopping: Receiver<Stop>,
    /// Room for what requests bring.
    pub bodies: Bodies,
    /// Responses that were given, to go on from.
    pub responses: Store,
    /// Who joined, once the cluster is looked for.
    pub membership: OnceLock<Membership>,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Not yet.
    No,
    /// When answers that have begun are out: it takes no more connections, and streams without an end of their own end.
    Soon,
    /// At once: answers that are not out yet end with an error.
    Now,
}

impl Server {
    /// The model that a request names, or that is meant where it names none. If it is not loaded, that is waited for; it
    /// stays for `keep` after its last use, or as long as usual.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`], and as [`Desk::take`].
    pub(super) async fn model(
        &self,
        named: Option<&str>,
        keep: Option<Keep>,
    ) -> Result<Arc<Served>, ApiError> {
        let name = self.meant(named)?;
        match self.desk.given(&name, keep) {
            Some(served) => match self.board.phase_of(&name) {
                Some((phase @ Phase::Broken, reason)) => Err(ApiError::NotReady { phase, reason }),
                // While a lost stage is being replaced, requests wait.
                _ => Ok(served),
            },
            None => self.desk.take(self.at_hand(&name)?, keep).await,
        }
    }

    /// The name of the model that is meant: where none is named, that of the loaded one that was used last, or the only one's.
    ///
    /// # Errors
    /// [`ApiError::Parameter`] where one of several has to be named.
    pub(super) fn meant(&self, named: Option<&str>) -> Result<String, ApiError> {
        // Also while it is on its way, or its last requests end.
        let loaded = || Some(self.board.model()).filter(|name| !name.is_empty());
        let only = || self.shelf.only().map(|one| one.name.clone());
        let last = || self.desk.last_used();
        named.map(str::to_owned).or_else(last).or_else(loaded).or_else(only).ok_or_else(|| {
            let expected = format!("one of those at hand: {}", self.names().join(", "));
            ApiError::parameter("model", "missing", expected)
        })
    }

    /// The model of that name.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`].
    pub(super) fn at_hand(&self, name: &str) -> Result<Arc<AtHand>, ApiError> {
        let found = block_in_place(|| self.shelf.find(name));
        // They were looked for a moment ago.
        let at_hand = || self.shelf.known_names();
        let unknown = || ApiError::UnknownModel { found: name.to_owned(), at_hand: at_hand() };
        found.ok_or_else(unknown)
    }

    /// What may be asked for.
    pub(super) fn names(&self) -> Vec<String> {
        block_in_place(|| self.shelf.names())
    }

    /// What devices offer that are there.
    pub(super) fn offers(&self) -> Offers {
        let watched = self.board.snapshot();
        block_in_place(|| self.fits.offers(&watched.snapshot.members, &watched.awaited))
    }

    /// Whether a model would fit these, if nothing else was loaded.
    pub(super) fn fit(&self, model: &AtHand, offers: &Offers) -> Fit {
        block_in_place(|| self.fits.of(model, offers))
    }

    /// All models that may be asked for, each with what is loaded of it.
    pub(super) fn models(&self) -> Vec<(Arc<AtHand>, Option<Arc<Served>>)> {
        let all = block_in_place(|| self.shelf.all());
        let loaded = self.desk.loaded();
        let of = |one: &AtHand| loaded.iter().find(|served| served.name == one.name).cloned();
        let open = all.into_iter().filter(|one| one.about.is_ok());
        open.map(|one| (one.clone(), of(&one))).collect()
    }
}

/// The server, for requests that need a model: there is one, or can be.
pub(super) struct Ready(pub(super) Arc<Server>);

impl FromRequestParts<Arc<Server>> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        match server.desk.is_open() {
            true => Ok(Self(server.clone())),
            false => {
                let (phase, reason) = server.board.phase();
                Err(ApiError::NotReady { phase, reason })
            }
        }
    }
}
