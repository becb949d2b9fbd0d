//! `POST /api/embed`, and `/api/embeddings`, which was before it: as `/v1/embeddings`, of length 1.

use axum::{Extension, Json};
use serde_json::{Value, json};

use super::answer::Clock;
use super::models::called;
use super::wire::EmbedRequest;
use crate::api::bodies::Room;
use crate::api::embeddings::{Embedded, embed};
use crate::api::error::ApiError;
use crate::api::wire::Prompt;
use crate::api::{Body, Ready, Server};
use crate::scheduler::Scope;

pub(super) async fn several(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<EmbedRequest>,
) -> Result<Json<Value>, ApiError> {
    let clock = Clock::start();
    let (model, Embedded { embeddings, tokens }) = embedded(&server, scope, request, room).await?;
    Ok(Json(json!({
        "model": model,
        "embeddings": embeddings,
        "total_duration": clock.elapsed(),
        "load_duration": 0, // It is not told apart from the rest.
        "prompt_eval_count": tokens,
    })))
}

pub(super) async fn one(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<EmbedRequest>,
) -> Result<Json<Value>, ApiError> {
    let (_, Embedded { mut embeddings, .. }) = embedded(&server, scope, request, room).await?;
    Ok(Json(json!({ "embedding": embeddings.pop().unwrap_or_else(|| json!([])) })))
}

/// The model's name for the client, and the embeddings: none where nothing is asked.
async fn embedded(
    server: &Server,
    scope: Scope,
    request: EmbedRequest,
    room: Room,
) -> Result<(String, Embedded), ApiError> {
    let EmbedRequest { model, input, keep_alive, .. } = request.checked()?;
    let (model, name) = called(server, model)?;
    let is_asked = |input: &Prompt| match input {
        Prompt::Texts(texts) => texts.iter().any(|text| !text.is_empty()),
        Prompt::Ids(ids) => !ids.is_empty(),
    };
    let served = server.model(Some(&name), keep_alive).await?;
    let embedded = match input.filter(is_asked) {
        Some(input) => embed(&served, scope, input, room, |values| json!(unit(values))).await?,
        None => Embedded { embeddings: Vec::new(), tokens: 0 },
    };
    Ok((model, embedded))
}

/// The same direction, of length 1; zeros as they are.
fn unit(values: &[f32]) -> Vec<f32> {
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let length = if length > 0.0 { length } else { 1.0 };
    values.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_has_the_length_of_one() {
        assert_eq!(unit(&[3.0, 0.0, -4.0]), [0.6, 0.0, -0.8]);
        assert_eq!(unit(&[0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(unit(&[f32::MAX, 0.0]), [1.0, 0.0], "no overflow on the way");
    }
}
