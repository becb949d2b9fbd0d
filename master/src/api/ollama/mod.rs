//! Ollama's API, beneath `/api/`: for programs that are made for Ollama.
//!
//! A chat, or a prompt, becomes a request for a chat (`ask`, with `options`), which is read, bounded and computed as any
//! other; its answer goes out in lines of JSON (`answer`), its refusals with the `names` that things have here. `embed`
//! answers as `embeddings` does, and `models` says what is served under the name that Ollama would give it.

mod answer;
mod ask;
mod embed;
mod models;
mod names;
mod options;
mod wire;

use std::sync::Arc;

use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Router};

use self::answer::{Clock, Kind, Manner};
use self::ask::Asking;
use self::models::{called, capable};
pub(super) use self::names::{LINES, is_asked, named};
use self::wire::{ChatRequest, GenerateRequest};
use super::bodies::Room;
use super::error::ApiError;
use super::measure::parse;
use super::{Body, Ready, Served, Server};
use crate::scheduler::Scope;

pub(super) fn routes() -> Router<Arc<Server>> {
    let mut routes = Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(embed::several))
        .route("/api/embeddings", post(embed::one))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version))
        .route("/api/pull", post(models::pull));
    for path in ["/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest}"] {
        routes = routes.route(path, any(models::only_served));
    }
    routes
}

async fn chat(
    Ready(served): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let context = served.scheduler.limits().context;
    answer(served, Kind::Chat, scope, ask::chat(request, context)?, room).await
}

async fn generate(
    Ready(served): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    let context = served.scheduler.limits().context;
    answer(served, Kind::Generate, scope, ask::generate(request, context)?, room).await
}

async fn answer(
    served: Arc<Served>,
    kind: Kind,
    scope: Scope,
    asking: Asking,
    room: Room,
) -> Result<Response, ApiError> {
    let clock = Clock::start();
    let manner = Manner { kind, model: called(&served, asking.model)? };
    // Nothing is asked: programs have Ollama load a model so.
    let Some(asked) = asking.asked else { return Ok(manner.loaded()) };
    capable(&served, asking.thinks, asked.offers_tools())?;
    let prepared = asked.prepare(&served, scope, room).await?;
    answer::respond(served, prepared, manner, clock).await
}

/// Takes bytes as the body of each kind of request, as far as no model is needed.
pub(super) fn hostile(bytes: &[u8]) {
    const CONTEXT: usize = 4096;
    if let Ok(request) = parse::<ChatRequest>(bytes) {
        ask::chat(request, CONTEXT).ok();
    }
    if let Ok(request) = parse::<GenerateRequest>(bytes) {
        ask::generate(request, CONTEXT).ok();
    }
    parse::<wire::EmbedRequest>(bytes).ok();
    parse::<wire::NameRequest>(bytes).ok();
}
