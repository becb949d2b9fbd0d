//! A request's body as the value that it says, parsed where that holds up nobody.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::bodies::{Bodies, FREE_BYTES, PATIENCE, Room};
use super::door::Place;
use super::error::ApiError;
use super::measure::{self, Measured};
use super::server::Server;
use crate::aside::aside;

/// Bodies from this size on are parsed aside; those between, where no other connection waits for it.
const LARGE_BYTES: usize = 1 << 20;

/// A body of JSON, whatever its content type says, and the room that what was made of it takes.
pub(super) struct Body<T>(pub(super) T, pub(super) Room);

impl<T: DeserializeOwned + Measured + Send + 'static> FromRequest<Arc<Server>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let place = parts.extensions.get::<Arc<Place>>().cloned();
        let (content, room) = server.bodies.read(body, place.as_deref()).await?;
        Ok(Self(parsed(&server.bodies, content).await?, room))
    }
}

/// What JSON of this size says, read where that holds up nobody.
pub(super) async fn parsed<T>(bodies: &Bodies, content: Vec<u8>) -> Result<T, ApiError>
where
    T: DeserializeOwned + Measured + Send + 'static,
{
    match content.len() {
        ..FREE_BYTES => measure::parse(&content),
        FREE_BYTES..LARGE_BYTES => tokio::task::block_in_place(|| measure::parse(&content)),
        _ => {
            let turn = timeout(PATIENCE, bodies.turn.clone().acquire_owned()).await;
            let turn = turn.map_err(|_| ApiError::ManyLargeTexts)?;
            let parse = move || {
                let _turn = turn;
                measure::parse(&content)
            };
            let parsed = aside(parse).await.ok().flatten();
            parsed.unwrap_or_else(|| Err(ApiError::Body("it cannot be read now".to_owned())))
        }
    }
}
