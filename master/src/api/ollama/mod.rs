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

use axum::Extension;
use axum::response::Response;

use self::answer::{Clock, Kind, Manner};
use self::ask::Asking;
use self::models::{called, capable};
pub(super) use self::names::{LINES, is_asked, named};
pub(super) use self::wire::{ChatRequest, EmbedRequest, GenerateRequest, NameRequest};
use super::bodies::Room;
use super::error::ApiError;
use super::measure::parse;
use super::routes::Routes;
use super::{Body, Ready, Served};
use crate::scheduler::Scope;

/// Adds what is there of it.
pub(super) fn add_to(routes: Routes) -> Routes {
    routes
        .post("/api/chat", chat)
        .post("/api/generate", generate)
        .post("/api/embed", embed::several)
        .post("/api/embeddings", embed::one)
        .get("/api/tags", models::tags)
        .get("/api/ps", models::running)
        .post("/api/show", models::show)
        .get("/api/version", models::version)
        .post("/api/pull", models::pull)
        .post("/api/push", models::only_served)
        .post("/api/create", models::only_served)
        .post("/api/copy", models::only_served)
        .delete("/api/delete", models::only_served)
        .head("/api/blobs/{digest}", models::only_served)
        .post("/api/blobs/{digest}", models::only_served)
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
    parse::<EmbedRequest>(bytes).ok();
    parse::<NameRequest>(bytes).ok();
}
