//! OpenAI's Responses: `POST /v1/responses`, and what is stored of them beneath it.
//!
//! A request becomes one for a chat (`ask`, `items`), with the conversation that it goes on from (`store`), and is read,
//! bounded and computed as any other; its answer goes out in items of thought, text and calls (`output`, `answer`).

mod answer;
mod ask;
mod items;
pub(super) mod list;
mod output;
mod store;
mod wire;

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use self::answer::{Asker, respond};
use self::ask::{Record, chat};
use self::list::{check_whole, page};
pub use self::store::Store;
use self::store::Stored;
pub(super) use self::wire::ResponsesRequest;
use self::wire::{Item, Items};
use super::bodies::{Bodies, MAX_BODY_BYTES, Room};
use super::body::parsed;
use super::chat::Asked;
use super::error::ApiError;
use super::owner::Owner;
use super::{Body, Name, Ready, Server};
use crate::scheduler::Scope;

/// Where it is; what is beneath it speaks as this API does, also where it refuses.
pub(super) const PATH: &str = "/v1/responses";

pub(super) async fn create(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Extension(owner): Extension<Owner>,
    Body(request, mut room): Body<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let earlier = match &request.previous_response_id {
        Some(id) => {
            let turns = server.responses.conversation(owner, id).map_err(|id| {
                ApiError::UnknownResponse { id, param: Some("previous_response_id") }
            })?;
            earlier(&server.bodies, &turns, &mut room).await?
        }
        None => Vec::new(),
    };
    let (asked, mut record) = asked(request, earlier)?;
    let served = server.model(asked.model(), None).await?;
    // Whoever reads slowly keeps no room from others' bodies: what waits to be stored has its own.
    let kept = server.responses.room(record.bytes());
    if kept.is_none() {
        record.forget();
    }
    let prepared = asked.prepare(&served, scope, room).await?;
    respond(Asker { server, served, owner }, prepared, record, kept).await
}

/// What a request asks for that goes on from nothing, as far as that can be known without a model.
pub(super) fn first(request: ResponsesRequest) -> Result<Asked, ApiError> {
    asked(request, Vec::new()).map(|(asked, _)| asked)
}

fn asked(request: ResponsesRequest, earlier: Vec<Item>) -> Result<(Asked, Record), ApiError> {
    let (chat, record) = chat(request, earlier)?;
    Ok((Asked::new(chat)?, record))
}

/// The items of these turns, read as if a client had sent them: they take `room`, too.
async fn earlier(
    bodies: &Bodies,
    turns: &[Arc<Stored>],
    room: &mut Room,
) -> Result<Vec<Item>, ApiError> {
    let lists = || turns.iter().flat_map(|turn| [turn.input.as_str(), turn.output.as_str()]);
    let bytes: usize = lists().map(str::len).sum();
    if bytes > MAX_BODY_BYTES {
        let found = format!("the last of a conversation of {bytes} bytes");
        let expected = format!("one of at most {} MiB", MAX_BODY_BYTES >> 20);
        return Err(ApiError::parameter("previous_response_id", found, expected));
    }
    room.join(bodies.more(bytes).await?);
    // Each is a list with its brackets.
    let items = lists().filter_map(|list| list.strip_prefix('[')?.strip_suffix(']'));
    let items: Vec<&str> = items.filter(|items| !items.is_empty()).collect();
    let Items(items) = parsed(bodies, format!("[{}]", items.join(",")).into_bytes()).await?;
    Ok(items)
}

/// A response that is stored.
pub(super) async fn retrieve(
    State(server): State<Arc<Server>>,
    Extension(owner): Extension<Owner>,
    Name(id): Name,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    check_whole(query.as_deref())?;
    let stored = stored(&server, owner, id)?;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, stored.response.clone()).into_response())
}

/// Forgets a response. Those that go on from it stay, and nothing can go on from them any more.
pub(super) async fn delete(
    State(server): State<Arc<Server>>,
    Extension(owner): Extension<Owner>,
    Name(id): Name,
) -> Result<Json<Value>, ApiError> {
    match server.responses.remove(owner, &id) {
        true => Ok(Json(json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(ApiError::UnknownResponse { id, param: None }),
    }
}

/// What was said to the model in the request for a response, without what it went on from.
pub(super) async fn input_items(
    State(server): State<Arc<Server>>,
    Extension(owner): Extension<Owner>,
    Name(id): Name,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let stored = stored(&server, owner, id)?;
    let _room = server.bodies.more(stored.input.len()).await?;
    let Items(items) = parsed(&server.bodies, stored.input.clone().into_bytes()).await?;
    page(items, query.as_deref()).map(Json)
}

fn stored(server: &Server, owner: Owner, id: String) -> Result<Arc<Stored>, ApiError> {
    let stored = server.responses.get(owner, &id);
    stored.ok_or(ApiError::UnknownResponse { id, param: None })
}
