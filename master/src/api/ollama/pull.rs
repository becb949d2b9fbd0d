//! `POST /api/pull`: a model of the Hub's becomes one at hand, with lines that say how far it is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body as Sent, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cake_hub::{Observer, Pulled, Wanted};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use super::models::{USUAL_TAG, called};
use super::names::LINES;
use super::wire::NameRequest;
use crate::api::error::ApiError;
use crate::api::{Body, Ready};
use crate::shelf::{self, WhyNot};

/// What programs write before the name of a model of the Hub.
const PREFIXES: [&str; 4] =
    ["hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/"];
/// What may precede these.
const SECURE: &str = "https://";
/// How often it is said how far it is.
const EVERY: Duration = Duration::from_millis(200);

/// What is at hand is there already; anything else is fetched where the Hub's cache is at hand.
pub(super) async fn pull(
    Ready(server): Ready,
    Body(request, _): Body<NameRequest>,
) -> Result<Response, ApiError> {
    let is_stream = request.stream.unwrap_or(true);
    let (_, name) = called(&server, request.named())?;
    let plain = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
    let plain = plain.strip_suffix(USUAL_TAG).unwrap_or(plain);
    let done = || json!({ "status": "success" });
    // Ollama itself has some of the Hub's under such names.
    let at_hand = match server.at_hand(plain) {
        Err(_) if name != plain => server.at_hand(name.strip_prefix(SECURE).unwrap_or(&name)),
        found => found,
    };
    match at_hand {
        Ok(model) => match (&model.about, is_stream) {
            (Ok(_), true) => return Ok(lines(Sent::from(line(&done())))),
            (Ok(_), false) => return Ok(Json(done()).into_response()),
            // Something of it is missing. What another program keeps the Hub has under other names.
            (Err(_), _) if server.shelf.has_hub() && model.is_by_name() => {}
            (Err(why), _) => {
                return Err(ApiError::NotLoaded {
                    model: model.name.clone(),
                    why: why.clone() as WhyNot,
                });
            }
        },
        Err(_) if server.shelf.has_hub() => {}
        Err(unknown) => return Err(unknown),
    }
    let wanted: Wanted = plain.parse().map_err(ApiError::Hub)?;
    let pulls = server.pulls.clone();
    if !is_stream {
        let turn = pulls.acquire_owned().await.map_err(|_| ApiError::Closed)?;
        Fetching::begin(wanted, turn).outcome().await?;
        return Ok(Json(done()).into_response());
    }
    let told = stream::unfold(Some(Step::Asked(wanted, pulls)), |step| async move {
        let (said, next) = step?.take().await;
        Some((Ok::<_, Infallible>(line(&said)), next))
    });
    Ok(lines(Sent::from_stream(told)))
}

/// What a line of a stream is about.
enum Step {
    Asked(Wanted, Arc<Semaphore>),
    /// Others are fetched before it.
    Waits(Wanted, Arc<Semaphore>),
    Fetched(Fetching),
}

impl Step {
    /// What is said, and what comes after it.
    async fn take(self) -> (Value, Option<Self>) {
        let begun = |wanted, turn| {
            let fetching = Self::Fetched(Fetching::begin(wanted, turn));
            (json!({ "status": "pulling manifest" }), Some(fetching))
        };
        match self {
            Self::Asked(wanted, pulls) => match pulls.clone().try_acquire_owned() {
                Ok(turn) => begun(wanted, turn),
                Err(_) => {
                    let said = json!({ "status": "waiting for another pull" });
                    (said, Some(Self::Waits(wanted, pulls)))
                }
            },
            Self::Waits(wanted, pulls) => match pulls.acquire_owned().await {
                Ok(turn) => begun(wanted, turn),
                Err(_) => (ApiError::Closed.of_ollama(), None),
            },
            Self::Fetched(mut fetching) => match fetching.further().await {
                None => (fetching.status(), Some(Self::Fetched(fetching))),
                Some(Ok(_)) => (json!({ "status": "success" }), None),
                Some(Err(error)) => (error.of_ollama(), None),
            },
        }
    }
}

fn line(said: &Value) -> Bytes {
    format!("{said}\n").into()
}

fn lines(body: Sent) -> Response {
    ([(header::CONTENT_TYPE, LINES)], body).into_response()
}

/// A model on its way, until this is dropped.
struct Fetching {
    name: String,
    /// Bytes that are there, and of how many.
    told: watch::Receiver<(u64, u64)>,
    fetched: JoinHandle<Result<Pulled, cake_hub::Error>>,
}

impl Fetching {
    fn begin(wanted: Wanted, turn: OwnedSemaphorePermit) -> Self {
        let (tell, told) = watch::channel((0, 0));
        let name = wanted.to_string();
        let fetched = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            shelf::pull(&wanted, &Teller(tell))
        });
        Self { name, told, fetched }
    }

    /// What it came to.
    async fn outcome(&mut self) -> Result<Pulled, ApiError> {
        let fetched = (&mut self.fetched).await.map_err(|_| ApiError::Closed)?;
        fetched.map_err(ApiError::Hub)
    }

    /// `None` when it is further than before, else what it came to.
    async fn further(&mut self) -> Option<Result<Pulled, ApiError>> {
        let mut told = self.told.clone();
        let further = async {
            tokio::time::sleep(EVERY).await;
            if told.changed().await.is_err() {
                std::future::pending::<()>().await; // It is over.
            }
        };
        tokio::select! {
            outcome = self.outcome() => Some(outcome),
            () = further => {
                self.told.mark_unchanged();
                None
            }
        }
    }

    fn status(&self) -> Value {
        let (done, total) = *self.told.borrow();
        let (status, name) = (format!("pulling {}", self.name), &self.name);
        // Programs show how far it is for each digest that they are told.
        json!({ "status": status, "digest": name, "total": total, "completed": done })
    }
}

/// Leaves word of how far it is for as long as somebody listens.
struct Teller(watch::Sender<(u64, u64)>);

impl Observer for Teller {
    fn progress(&self, done: u64, total: u64) {
        // Told by several threads, in any order.
        self.0.send_if_modified(|told| {
            let is_further = done > told.0 || total != told.1;
            *told = (told.0.max(done), total);
            is_further
        });
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_closed()
    }
}
