//! The OpenAI API over HTTP, and Anthropic's and Ollama's: what clients send becomes requests of the scheduler, what it generates
//! becomes JSON.
//!
//! Start at [`serve`]. Connections come in through the `door`, every request gets an id and a line in the log
//! (`requests`), and its body is read within bounds (`body`, `bodies`). Who may ask is in `guard`, what people watch in `watch`
//! and `page`, what the owner of the devices may do with them in `household`. A request is checked (`params`, `unmet`), its prompts become token ids (`prompts`), its
//! answers are turned into pieces of text as they come (`answer`), and these into one object or a stream
//! of events (`respond`) in the shape of its kind (`chat` with `tools`, `completions`); `embeddings`
//! answers by itself, `messages` are chats in Anthropic's words, `responses` in OpenAI's newer ones, `ollama` is Ollama's API,
//! and `tokens` tell what a model is told. What a body holds is counted before it is
//! parsed (`measure`), what a schema asks for before it is compiled (`grammar::bounds`).
//!
//! Invariants:
//! - Nothing outside this module names a field of OpenAI's JSON, of Anthropic's, or of Ollama's.
//! - Whoever goes away is not computed for any longer: an answer that nobody reads is cancelled.
//! - Every refusal has the form of the API that was asked, also in the middle of a stream; OpenAI's where no request was
//!   read.
//! - What a client can hold of memory, files and time has a bound, however many requests it sends and however it sends
//!   them.

mod answer;
mod bodies;
mod body;
mod chat;
mod completions;
mod desk;
mod door;
mod embeddings;
mod ending;
mod error;
mod guard;
pub mod hostile;
mod household;
mod measure;
mod messages;
mod not_done;
mod ollama;
mod owner;
mod page;
mod params;
mod prompts;
mod requests;
mod respond;
mod responses;
mod said;
mod served;
mod server;
mod telling;
mod tokens;
mod tools;
mod turns;
mod unmet;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::monitor::Phase;
use crate::request_id::RequestId;
use crate::shelf::AtHand;
pub use bodies::Bodies;
use body::Body;
pub use desk::{Desk, Want};
pub use door::Bounds;
use error::ApiError;
pub use params::{default_max_tokens, default_sampling};
pub use respond::unix_seconds;
pub use responses::Store;
pub use served::Served;
use server::Ready;
pub use server::{Server, Stop};
pub use turns::Turns;

/// Answers what comes to any of `listeners`, with `router` as [`router()`] makes it, until the server is to stop and answers
/// are out or have been ended. `bounds` are those of all of them together.
pub async fn serve(
    listeners: Vec<TcpListener>,
    bounds: Bounds,
    server: Arc<Server>,
    router: Router,
) {
    let (counts, stop) = (server.monitor.metrics.http.clone(), server.stopping.clone());
    let connections = bounds.connections;
    let full = move || ApiError::Full { connections }.whole(&RequestId::made());
    let answer =
        move |request, place| requests::handle(server.clone(), router.clone(), request, place);
    door::open(listeners, bounds, counts, stop, full, answer).await;
}

/// Everything that can be asked for.
pub fn router(server: Arc<Server>) -> Router {
    let guarded = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route(messages::PATH, post(messages::create))
        .route(&format!("{}/count_tokens", messages::PATH), post(messages::count_tokens))
        .route(responses::PATH, post(responses::create))
        .route(
            &format!("{}/{{id}}", responses::PATH),
            get(responses::retrieve).delete(responses::delete),
        )
        .route(&format!("{}/{{id}}/input_items", responses::PATH), get(responses::input_items))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/api/cluster", get(watch::cluster))
        .route("/api/events", get(watch::events))
        .route("/api/requests", get(watch::requests))
        .route("/api/log", get(watch::log))
        .route("/metrics", get(watch::metrics))
        .merge(household::routes(server.clone()))
        .merge(ollama::routes())
        .layer(middleware::from_fn_with_state(server.clone(), guard::authorized));
    let page = Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .layer(middleware::from_fn_with_state(server.clone(), guard::named));
    Router::new()
        .merge(page)
        .route("/health", get(health))
        .route("/ready", get(ready))
        .merge(guarded)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(server)
}

/// Whether the server runs at all.
async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether it answers requests: 200 where it does, also in part of its strength or once their model is loaded, 503 where
/// requests wait or are refused. `degraded` is what it says while a loss is made good, and while a worker is not used for what it did. Why,
/// it says only to those who may ask more.
async fn ready(State(server): State<Arc<Server>>, headers: HeaderMap) -> (StatusCode, Json<Value>) {
    let (phase, reason) = server.monitor.phase();
    let aside = server.monitor.aside();
    let (code, status) = match phase {
        Phase::Idle => (StatusCode::OK, json!(phase)),
        Phase::Ready if aside.is_empty() => (StatusCode::OK, json!(phase)),
        Phase::Ready => (StatusCode::OK, json!("degraded")),
        Phase::Recovering => (StatusCode::SERVICE_UNAVAILABLE, json!("degraded")),
        _ => (StatusCode::SERVICE_UNAVAILABLE, json!(phase)),
    };
    let reason = reason.or_else(|| Some(aside.trim_start_matches("; ").to_owned()));
    let reason = reason.filter(|reason| !reason.is_empty());
    let reason = reason.filter(|_| guard::check(&server, &headers).is_ok());
    (code, Json(json!({ "status": status, "phase": phase, "reason": reason })))
}

async fn models(Ready(server): Ready) -> Json<Value> {
    let models = server.models();
    let name = |one: Option<&(Arc<AtHand>, _)>| one.map(|(model, _)| model.name.clone());
    // Of this list both APIs are fond, each of fields of its own.
    Json(json!({
        "object": "list",
        "data": models.iter().map(|(one, served)| model_object(one, served.as_deref())).collect::<Vec<_>>(),
        "has_more": false,
        "first_id": name(models.first()),
        "last_id": name(models.last()),
    }))
}

async fn model(Ready(server): Ready, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let model = server.at_hand(&name)?;
    let served = server.desk.loaded().filter(|served| served.name == name);
    Ok(Json(model_object(&model, served.as_deref())))
}

/// What is told of a model, and of how it is loaded if it is.
fn model_object(model: &AtHand, served: Option<&Served>) -> Value {
    let there = model.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let created = served.map_or(there, |served| served.created);
    let date = UNIX_EPOCH + Duration::from_secs(created);
    let mut object = json!({
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "cake",
        "type": "model",
        "display_name": model.name,
        "created_at": humantime::format_rfc3339_seconds(date).to_string(),
        "lifecycle": "active",
        "loaded": served.is_some(),
        "bytes": model.about.as_ref().map_or(0, |about| about.bytes),
    });
    if let Some(served) = served {
        let context = served.scheduler.limits().context;
        object["context_length"] = json!(context);
        object["max_input_tokens"] = json!(context);
    }
    object
}

async fn unknown_path(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::UnknownPath { path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::Method { path: uri.path().to_owned(), method: method.to_string() }
}
