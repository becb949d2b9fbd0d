//! Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`.
//!
//! A request becomes one for a chat (`ask`), which is read, bounded and computed as any other; its answer goes out in blocks
//! of thought, text and calls (`answer`).

mod answer;
mod ask;
mod wire;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use self::answer::respond;
use self::ask::chat;
pub(super) use self::wire::MessagesRequest;
use super::chat::Asked;
use super::error::ApiError;
use super::{Body, Ready};
use crate::scheduler::Scope;

/// Where it is; what is beneath it speaks as this API does, also where it refuses.
pub(super) const PATH: &str = "/v1/messages";
/// The header by which clients say what version of it they speak.
pub(super) const VERSION: &str = "anthropic-version";

pub(super) async fn create(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let asked = asked(request)?;
    let served = server.model(asked.model(), None).await?;
    let prepared = asked.prepare(&served, scope, room).await?;
    respond(served, prepared).await.map(IntoResponse::into_response)
}

/// How many tokens a request's prompt has.
pub(super) async fn count_tokens(
    Ready(server): Ready,
    Body(request, room): Body<MessagesRequest>,
) -> Result<Json<Value>, ApiError> {
    let mut asked = asked(request)?;
    let served = server.model(asked.model(), None).await?;
    let prompt = asked.prompt(&served).await?;
    drop(room);
    Ok(Json(json!({ "input_tokens": prompt.ids.len() })))
}

/// What a request asks for, as far as that can be known without a model.
pub(super) fn asked(request: MessagesRequest) -> Result<Asked, ApiError> {
    Asked::new(chat(request)?)
}
