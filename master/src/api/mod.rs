//! The OpenAI API over HTTP, and Anthropic's and Ollama's: what clients send becomes requests of the scheduler, what it generates
//! becomes JSON.
//!
//! Start at [`serve`]. Connections come in through the `door`, every request gets an id and a line in the log
//! (`requests`), and its body is read within bounds (`body`, `bodies`). Who may ask is in `guard`, what people watch in `watch`
//! and `page`, what the owner of the devices may do with them in `household`. A request is checked (`params`, `unmet`), its prompts become token ids (`prompts`), its
//! answers are turned into pieces of text as they come (`answer`), and these into one object or a stream
//! of events (`respond`) in the shape of its kind (`chat` with `tools`, `completions`); `embeddings`
//! answers by itself, `messages` are chats in Anthropic's words, `responses` in OpenAI's newer ones, `ollama` is Ollama's API,
//! and `tokens` tell what a model is told. What `routes` there are `openapi` describes. What a body holds is counted before it is
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
mod bounds;
mod chat;
mod completions;
mod described;
mod desk;
mod door;
mod embeddings;
mod ending;
mod error;
mod extent;
mod guard;
pub mod hostile;
mod household;
mod measure;
mod messages;
mod name;
mod not_done;
mod ollama;
mod openapi;
mod owner;
mod page;
mod params;
mod prompts;
mod requests;
mod respond;
mod responses;
mod routes;
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

use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::deployment::fits::{Fit, Offers};
use crate::monitor::Phase;
use crate::request_id::RequestId;
use crate::shelf::AtHand;
pub use bodies::Bodies;
use body::Body;
pub use desk::{Desk, Want};
pub use door::Bounds;
use error::ApiError;
use name::Name;
pub use openapi::description;
pub use params::{default_max_tokens, default_sampling};
pub use respond::unix_seconds;
pub use responses::Store;
use routes::Routes;
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
    let (counts, stop) = (server.board.metrics.http.clone(), server.stopping.clone());
    let connections = bounds.connections;
    let full = move || ApiError::Full { connections }.whole(&RequestId::made());
    let answer =
        move |request, place| requests::handle(server.clone(), router.clone(), request, place);
    door::open(listeners, bounds, counts, stop, full, answer).await;
}

/// Everything that can be asked for.
pub fn router(server: Arc<Server>) -> Router {
    let owned = household::owned().router();
    let owned = owned.layer(middleware::from_fn_with_state(server.clone(), guard::owned));
    let guarded = guarded().router().merge(owned);
    let guarded = guarded.layer(middleware::from_fn_with_state(server.clone(), guard::authorized));
    let named = named().router();
    let named = named.layer(middleware::from_fn_with_state(server.clone(), guard::named));
    Router::new()
        .merge(named)
        .merge(open().router())
        .merge(guarded)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(server)
}

/// What is there for those who may ask.
fn guarded() -> Routes {
    let routes = Routes::default()
        .post("/v1/chat/completions", chat::create)
        .post("/v1/completions", completions::create)
        .post("/v1/embeddings", embeddings::create)
        .post(messages::PATH, messages::create)
        .post("/v1/messages/count_tokens", messages::count_tokens)
        .post(responses::PATH, responses::create)
        .get("/v1/responses/{id}", responses::retrieve)
        .delete("/v1/responses/{id}", responses::delete)
        .get("/v1/responses/{id}/input_items", responses::input_items)
        .post("/tokenize", tokens::tokenize)
        .post("/detokenize", tokens::detokenize)
        .post("/apply-template", tokens::apply_template)
        .get("/tokenizer_info", tokens::tokenizer_info)
        .get("/v1/models", models)
        .get("/v1/models/{*name}", model)
        .get("/api/cluster", watch::cluster)
        .get("/api/events", watch::events)
        .get("/api/requests", watch::requests)
        .get("/api/log", watch::log)
        .get("/api/members", household::members)
        .get("/metrics", watch::metrics);
    ollama::add_to(routes)
}

/// What is nobody's secret, for those who call the server by a name of its own.
fn named() -> Routes {
    Routes::default()
        .get("/", page::index)
        .get("/page/{name}", page::file)
        .get("/openapi.json", openapi::serve)
}

/// What is there for everybody.
fn open() -> Routes {
    Routes::default().get("/health", health).get("/ready", ready)
}

/// The method, in small letters, and the path of everything that can be asked for.
#[cfg(test)]
fn all_routes() -> Vec<(&'static str, &'static str)> {
    [guarded(), household::owned(), named(), open()]
        .iter()
        .flat_map(|routes| routes.all().to_vec())
        .collect()
}

/// Whether the server runs at all.
async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether it answers requests: 200 where it does, also in part of its strength or once their model is loaded, 503 where
/// requests wait or are refused. `degraded` is what it says while a loss is made good, and while a worker is not used for what it did. Why,
/// it says only to those who may ask more.
async fn ready(State(server): State<Arc<Server>>, headers: HeaderMap) -> (StatusCode, Json<Value>) {
    let (phase, reason) = server.board.phase();
    let aside = server.board.aside();
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
    let offers = server.offers();
    let name = |one: Option<&(Arc<AtHand>, _)>| one.map(|(model, _)| model.name.clone());
    let object = |(one, served): &(Arc<AtHand>, Option<Arc<Served>>)| {
        model_object(&server, one, &offers, served.as_deref())
    };
    // Of this list both APIs are fond, each of fields of its own.
    Json(json!({
        "object": "list",
        "data": models.iter().map(object).collect::<Vec<_>>(),
        "has_more": false,
        "first_id": name(models.first()),
        "last_id": name(models.last()),
    }))
}

async fn model(Ready(server): Ready, Name(name): Name) -> Result<Json<Value>, ApiError> {
    let model = server.at_hand(&name)?;
    let served = server.desk.loaded_as(&name);
    Ok(Json(model_object(&server, &model, &server.offers(), served.as_deref())))
}

/// What is told of a model, whether it would fit, and how it is loaded if it is.
fn model_object(
    server: &Server,
    model: &AtHand,
    offers: &Offers,
    served: Option<&Served>,
) -> Value {
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
    let fit = if served.is_some() { Fit::Whole } else { server.fit(model, offers) };
    object["fits"] = match fit {
        Fit::Whole => json!(true),
        Fit::Lacks { .. } => json!(false),
        Fit::Unknown => Value::Null,
    };
    if let Fit::Lacks { needed_bytes, offered_bytes } = fit {
        object["needed_bytes"] = json!(needed_bytes);
        object["offered_bytes"] = json!(offered_bytes);
    }
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
