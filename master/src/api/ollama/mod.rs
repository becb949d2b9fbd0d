//! Ollama's API, beneath `/api/`: for programs that are made for Ollama.
//!
//! A chat, or a prompt, becomes a request for a chat (`ask`, with `options`), which is read, bounded and computed as any
//! other; its answer goes out in lines of JSON (`answer`), its refusals with the `names` that things have here. `embed`
//! answers as `embeddings` does, `models` says what is at hand under the names that Ollama would give it, and `pull` fetches
//! more from the Hub.

mod answer;
mod ask;
mod embed;
mod models;
mod names;
mod options;
mod pull;
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
use super::{Body, Ready, Served, Server};
use crate::scheduler::Scope;
use crate::shelf::Keep;

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
        .post("/api/pull", pull::pull)
        .post("/api/push", models::only_told)
        .post("/api/create", models::only_told)
        .post("/api/copy", models::only_told)
        .delete("/api/delete", models::only_told)
        .head("/api/blobs/{digest}", models::only_told)
        .post("/api/blobs/{digest}", models::only_told)
}

async fn chat(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let named = (request.shared.model.clone(), request.shared.keep_alive);
    let asking = ask::chat(request)?;
    let found = find(&server, Kind::Chat, named, asking.asked.is_some()).await?;
    answer(found, scope, asking, room).await
}

async fn generate(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    let named = (request.shared.model.clone(), request.shared.keep_alive);
    let asking = ask::generate(request)?;
    let found = find(&server, Kind::Generate, named, asking.asked.is_some()).await?;
    answer(found, scope, asking, room).await
}

/// A model that a request is for.
struct Found {
    /// None where it is only to be let go.
    served: Option<Arc<Served>>,
    manner: Manner,
    clock: Clock,
}

/// The model that a request names, loaded unless nothing is asked but that it goes. One that is being loaded goes once those
/// who wait for it had it.
async fn find(
    server: &Server,
    kind: Kind,
    (model, keep): (Option<String>, Option<Keep>),
    asks: bool,
) -> Result<Found, ApiError> {
    let clock = Clock::start();
    let (model, name) = called(server, model)?;
    let manner = Manner { kind, model };
    let served = match !asks && keep == Some(Keep::NOT) {
        true => {
            server.at_hand(&name)?;
            server.desk.let_go(&name);
            None
        }
        false => Some(server.model(Some(&name), keep).await?),
    };
    Ok(Found { served, manner, clock })
}

async fn answer(
    Found { served, manner, clock }: Found,
    scope: Scope,
    asking: Asking,
    room: Room,
) -> Result<Response, ApiError> {
    let Some(served) = served else { return Ok(manner.done("unload")) };
    asking.fits(served.scheduler.limits().context)?;
    // Nothing is asked: programs have Ollama load a model so.
    let Some(asked) = asking.asked else { return Ok(manner.done("load")) };
    capable(&served, asking.thinks, asked.offers_tools())?;
    let prepared = asked.prepare(&served, scope, room).await?;
    answer::respond(served, prepared, manner, clock).await
}

/// Takes bytes as a request for a chat, as far as no model is needed.
pub(super) fn read_chat(bytes: &[u8]) -> Result<(), ApiError> {
    ask::chat(parse(bytes)?).map(drop)
}

/// The same as one for an answer to a prompt.
pub(super) fn read_generate(bytes: &[u8]) -> Result<(), ApiError> {
    ask::generate(parse(bytes)?).map(drop)
}

/// Takes bytes as the body of each kind of request, as far as no model is needed.
pub(super) fn hostile(bytes: &[u8]) {
    read_chat(bytes).ok();
    read_generate(bytes).ok();
    parse::<EmbedRequest>(bytes).ok();
    parse::<NameRequest>(bytes).ok();
}
