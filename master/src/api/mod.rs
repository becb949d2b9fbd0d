//! The OpenAI API over HTTP: what clients send becomes requests of the scheduler, what it generates
//! becomes JSON.
//!
//! Start at [`router`]. A request is checked (`params`), its answers are turned into pieces of text as they
//! come (`answer`), and these into one object or a stream of events (`respond`) in the shape of its
//! kind (`chat`, `completions`).
//!
//! Invariants:
//! - Nothing outside this module names a field of OpenAI's JSON.
//! - Whoever goes away is not computed for any longer: an answer that nobody reads is cancelled.
//! - Every refusal has OpenAI's form, also in the middle of a stream.

mod answer;
mod chat;
mod completions;
mod error;
mod params;
mod respond;
mod wire;

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRequest, OriginalUri, Path, Request, State};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use cake_engine::SamplingOptions;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::pipeline::StageInfo;
use crate::scheduler::Scheduler;
use crate::text::Text;
use error::ApiError;

/// Largest body of a request.
const MAX_BODY_BYTES: usize = 16 << 20;

/// A model that is served.
pub struct Served {
    /// Its name for clients.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Its words.
    pub text: Text,
    /// Its sequences.
    pub scheduler: Scheduler,
    /// How it chooses tokens unless a request says otherwise.
    pub defaults: SamplingOptions,
    /// Ids that end an answer.
    pub stop_ids: Arc<HashSet<u32>>,
    /// Who computes what.
    pub stages: Vec<StageInfo>,
    /// Keys of which a request must bring one; none are asked for if empty.
    pub keys: Vec<String>,
}

impl Served {
    /// The text of a token by itself.
    fn token_text(&self, id: u32) -> String {
        self.text.decode(&[id]).unwrap_or_default()
    }
}

/// Everything that can be asked for.
pub fn router(served: Arc<Served>) -> Router {
    let v1 = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/api/cluster", get(cluster))
        .layer(middleware::from_fn_with_state(served.clone(), authorized));
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(health))
        .merge(v1)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(served)
}

/// Lets those through who bring a key, if one is asked for.
async fn authorized(
    State(served): State<Arc<Served>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    // All keys are compared, and digests of them: how long that takes tells nothing.
    let given = blake3::hash(given.unwrap_or_default().as_bytes());
    let matching = served.keys.iter().filter(|key| blake3::hash(key.as_bytes()) == given).count();
    match served.keys.is_empty() || matching > 0 {
        true => Ok(next.run(request).await),
        false => Err(ApiError::Unauthorized),
    }
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn models(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_object(&served)] }))
}

async fn model(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
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

async fn cluster(State(served): State<Arc<Served>>) -> Json<Value> {
    let limits = served.scheduler.limits();
    Json(json!({
        "model": served.name,
        "stages": served.stages,
        "context": limits.context,
        "parallel": limits.parallel,
        "load": served.scheduler.load(),
    }))
}

async fn unknown_path(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::UnknownPath { path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::Method { path: uri.path().to_owned(), method: method.to_string() }
}

/// A body of JSON, whatever its content type says.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|refused| ApiError::Body(refused.body_text()))?;
        let parsed = serde_json::from_slice(&bytes);
        let wrong = |error| ApiError::Body(format!("the body is not such a request: {error}"));
        Ok(Self(parsed.map_err(wrong)?))
    }
}
