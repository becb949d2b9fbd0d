//! `POST /v1/embeddings`: the mean of a text's final hidden states. Language models are not trained for
//! this; what is close in meaning is often close here, too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::error::ApiError;
use super::params::check_model;
use super::wire::{EmbeddingsRequest, MAX_PROMPTS};
use super::{Body, Ready};
use crate::scheduler::{Event, Generation, Goal, Refusal, Request, Scope};

/// Most texts in one request: as OpenAI has it.
const MAX_INPUTS: usize = MAX_PROMPTS;
/// Between two attempts to find room for more of them.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) async fn create(
    Ready(served): Ready,
    Extension(scope): Extension<Scope>,
    Body(request): Body<EmbeddingsRequest>,
) -> Result<Json<Value>, ApiError> {
    let EmbeddingsRequest { model, input, encoding_format, dimensions } = request;
    check_model(&served, model.as_deref())?;
    if dimensions.is_some() {
        return Err(ApiError::Unsupported { param: "dimensions" });
    }
    let write: fn(&[f32]) -> Value = match encoding_format.as_deref() {
        None | Some("float") => |values| json!(values),
        Some("base64") => |values| json!(base64(values)),
        Some(other) => {
            let found = format!("{other:?}");
            return Err(ApiError::parameter("encoding_format", found, "\"float\" or \"base64\""));
        }
    };
    if !(1..=MAX_INPUTS).contains(&input.count()) {
        let found = format!("{} texts", input.count());
        return Err(ApiError::parameter("input", found, format!("1 to {MAX_INPUTS}")));
    }
    let prompts = served.ids(input).await?;
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let stop_ids: Arc<HashSet<u32>> = Arc::default();
    let request = |prompt| Request {
        prompt,
        max_tokens: 0,
        stop_ids: stop_ids.clone(),
        goal: Goal::Embedding,
        scope,
    };
    let mut data: Vec<Value> = Vec::with_capacity(prompts.len());
    // As many at a time as may run, so that others find places in the queue.
    for some in prompts.chunks(served.scheduler.limits().parallel.max(1)) {
        let requests = || some.iter().cloned().map(request).collect();
        let generations = loop {
            match served.scheduler.submit(requests()) {
                // Of those that have begun none is sent away.
                Err(Refusal::Busy { .. }) if !data.is_empty() => {
                    tokio::time::sleep(PATIENCE).await;
                }
                submitted => break submitted?,
            }
        };
        for generation in generations {
            let embedding = embedding(generation).await?;
            let (index, embedding) = (data.len(), write(&embedding));
            data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
        }
    }
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "data": data, "model": served.name, "usage": usage })))
}

/// Waits for an embedding.
async fn embedding(mut generation: Generation) -> Result<Vec<f32>, ApiError> {
    loop {
        match generation.next().await {
            Some(Event::Embedding(embedding)) => return Ok(embedding),
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(Event::Begun { .. } | Event::Token(_)) => {}
            Some(Event::Ended(_)) | None => return Err(ApiError::Closed),
        }
    }
}

/// Little-endian f32, as OpenAI's clients read them.
fn base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}
