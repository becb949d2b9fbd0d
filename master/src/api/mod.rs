//! The OpenAI API over HTTP: what clients send becomes requests of the scheduler, what it generates
//! becomes JSON.
//!
//! Start at [`router`]. Who may ask is in `guard`, what people watch in `watch` and `page`. A request is checked (`params`, `unmet`), its prompts become token ids (`prompts`), its
//! answers are turned into pieces of text as they come (`answer`), and these into one object or a stream
//! of events (`respond`) in the shape of its kind (`chat` with `tools`, `completions`); `embeddings`
//! answers by itself. What a body holds is counted before it is parsed (`measure`), what a schema asks for before it is
//! compiled (`grammar::bounds`).
//!
//! Invariants:
//! - Nothing outside this module names a field of OpenAI's JSON.
//! - Whoever goes away is not computed for any longer: an answer that nobody reads is cancelled.
//! - Every refusal has OpenAI's form, also in the middle of a stream.

mod answer;
mod chat;
mod completions;
mod embeddings;
mod error;
mod guard;
pub mod hostile;
mod measure;
mod page;
mod params;
mod prompts;
mod respond;
mod tools;
mod unmet;
mod watch;
mod wire;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, OriginalUri, Path};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use cake_engine::SamplingOptions;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::grammar::{self, Grammars};
use crate::monitor::{Monitor, Phase};
use crate::scheduler::Scheduler;
use crate::text::Text;
use error::ApiError;
use measure::Measured;
pub use params::{default_max_tokens, default_sampling};
pub use prompts::Turns;
pub use respond::unix_seconds;

/// Largest body of a request.
const MAX_BODY_BYTES: usize = 16 << 20;

/// A server, which answers from the start: its model comes later.
pub struct Server {
    /// What is shown and counted.
    pub monitor: Arc<Monitor>,
    /// Keys of which a request must bring one; none are asked for if empty.
    pub keys: Vec<String>,
    /// Whether requests with different keys share what their prompts begin with.
    pub share_prefixes: bool,
    /// Origins whose pages may ask beside its own; `*` stands for all.
    pub origins: Vec<String>,
    /// Whether it listens for this machine alone.
    pub loopback: bool,
    /// The model once it is there.
    pub served: OnceLock<Arc<Served>>,
    /// Becomes true when the server is to stop: streams without an end of their own end then.
    pub stopping: tokio::sync::watch::Receiver<bool>,
}

/// A model that is served.
pub struct Served {
    /// Its name for clients.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Its words.
    pub text: Text,
    /// Whose prompts are read.
    pub turns: Turns,
    /// Its sequences.
    pub scheduler: Scheduler,
    /// How it chooses tokens unless a request says otherwise.
    pub defaults: SamplingOptions,
    /// Most new tokens of an answer in a chat unless a request says otherwise.
    pub max_tokens: usize,
    /// Ids that end an answer.
    pub stop_ids: Arc<HashSet<u32>>,
    /// Grammars over its tokens, made when the first one is needed.
    pub grammars: OnceLock<Result<Grammars, grammar::Error>>,
}

impl Served {
    /// Grammars over its tokens. Takes a while the first time.
    fn grammars(&self) -> Result<&Grammars, ApiError> {
        let ends: Vec<u32> = self.stop_ids.iter().copied().collect();
        let vocab_size = self.scheduler.vocab_size();
        let make = || Grammars::new(&self.text.token_bytes(vocab_size), &ends);
        let made = self.grammars.get_or_init(make);
        made.as_ref().map_err(|error| ApiError::Grammar(error.clone()))
    }

    /// The text of a token by itself.
    fn token_text(&self, id: u32) -> String {
        self.text.decode(&[id]).unwrap_or_default()
    }
}

/// Everything that can be asked for.
pub fn router(server: Arc<Server>) -> Router {
    let guarded = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/api/cluster", get(watch::cluster))
        .route("/api/events", get(watch::events))
        .route("/metrics", get(watch::metrics))
        .layer(middleware::from_fn_with_state(server.clone(), guard::authorized));
    Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .merge(guarded)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(server)
}

/// The model, for requests that need it.
struct Ready(Arc<Served>);

impl FromRequestParts<Arc<Server>> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, server: &Arc<Server>) -> Result<Self, ApiError> {
        let (phase, reason) = server.monitor.phase();
        match server.served.get() {
            // While a lost stage is being replaced, requests wait.
            Some(served) if phase != Phase::Broken => Ok(Self(served.clone())),
            _ => Err(ApiError::NotReady { phase, reason }),
        }
    }
}

/// Whether the server runs at all.
async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether it answers requests.
async fn ready(State(server): State<Arc<Server>>) -> (StatusCode, Json<Value>) {
    let (phase, reason) = server.monitor.phase();
    let status = match phase {
        Phase::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(json!({ "status": phase, "reason": reason })))
}

async fn models(Ready(served): Ready) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_object(&served)] }))
}

async fn model(Ready(served): Ready, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    match name == served.name {
        true => Ok(Json(model_object(&served))),
        false => Err(ApiError::UnknownModel { found: name, served: served.name.clone() }),
    }
}

fn model_object(served: &Served) -> Value {
    let limits = served.scheduler.limits();
    json!({
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "cake",
        "context_length": limits.context,
    })
}

async fn unknown_path(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::UnknownPath { path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::Method { path: uri.path().to_owned(), method: method.to_string() }
}

/// A body of JSON, whatever its content type says.
struct Body<T>(T);

impl<T: DeserializeOwned + Measured, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|refused| match refused.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge,
            _ => ApiError::Body(refused.body_text()),
        })?;
        Ok(Self(measure::parse(&bytes)?))
    }
}
