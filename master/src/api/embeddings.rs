//! `POST /v1/embeddings`: the mean of a text's final hidden states. Language models are not trained for
//! this; what is close in meaning is often close here, too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cake_engine::blocks_for;
use serde_json::{Value, json};

use super::bodies::Room;
use super::bounds::{INPUTS, VECTORS};
use super::error::ApiError;
use super::wire::{EmbeddingsRequest, Prompt};
use super::{Body, Ready, Served};
use crate::running;
use crate::scheduler::{Event, Generation, Goal, Limits, Refusal, Request, Scope};

/// Between two attempts to find room for more of them.
const PATIENCE: Duration = Duration::from_millis(50);

/// What a request asks for, as far as that can be known without a model.
pub(super) struct Asked {
    model: Option<String>,
    input: Prompt,
    write: fn(&[f32]) -> Value,
}

impl Asked {
    /// # Errors
    /// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be done.
    pub(super) fn new(request: EmbeddingsRequest) -> Result<Self, ApiError> {
        let EmbeddingsRequest { model, input, encoding_format, dimensions, unmet } = request;
        unmet.check()?;
        if dimensions.is_some() {
            return Err(ApiError::Unsupported { param: "dimensions" });
        }
        let write: fn(&[f32]) -> Value = match encoding_format.as_deref() {
            None | Some("float") => |values| json!(values),
            Some("base64") => |values| json!(base64(values)),
            Some(other) => {
                let found = format!("{other:?}");
                return Err(ApiError::parameter("encoding_format", found, VECTORS.to_string()));
            }
        };
        check_inputs(&input)?;
        Ok(Self { model, input, write })
    }
}

/// Refuses no texts, too many, and none in the place of one.
///
/// # Errors
/// [`ApiError::Parameter`].
pub(super) fn check_inputs(input: &Prompt) -> Result<(), ApiError> {
    match INPUTS.has(input.count()) {
        true => input.check_ids("input"),
        false => {
            let found = format!("{} texts", input.count());
            Err(ApiError::parameter("input", found, INPUTS.to_string()))
        }
    }
}

pub(super) async fn create(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<EmbeddingsRequest>,
) -> Result<Json<Value>, ApiError> {
    let Asked { model, input, write } = Asked::new(request)?;
    let served = server.model(model.as_deref(), None).await?;
    let Embedded { embeddings, tokens } = embed(&served, scope, input, room, write).await?;
    let entry = |(index, embedding): (usize, Value)| json!({ "object": "embedding", "index": index, "embedding": embedding });
    let data: Vec<Value> = embeddings.into_iter().enumerate().map(entry).collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "data": data, "model": served.name, "usage": usage })))
}

/// What came of texts.
pub(super) struct Embedded {
    /// Their embeddings as they were to be written, in the same order.
    pub(super) embeddings: Vec<Value>,
    /// How many tokens the texts have.
    pub(super) tokens: usize,
}

/// The embeddings of `input`, each as `write` has it; `room` is what the request takes until its texts are ids.
pub(super) async fn embed(
    served: &Arc<Served>,
    scope: Scope,
    input: Prompt,
    mut room: Room,
    write: fn(&[f32]) -> Value,
) -> Result<Embedded, ApiError> {
    check_inputs(&input)?;
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
    let _ticket = running::enter(&served.name, prompts.len(), tokens);
    let mut embeddings: Vec<Value> = Vec::with_capacity(prompts.len());
    let mut left = prompts;
    while !left.is_empty() {
        // Of what was sent, the ids of those that are still to come are left. They wait here: no queue bounds them.
        room.keep(left.iter().map(|ids| size_of_val(&ids[..])).sum());
        // As many at a time as run together, so that the queue is left to others.
        let mut count = runs_together(&left, &served.scheduler.limits());
        let generations = loop {
            let requests = left[..count].iter().cloned().map(request).collect();
            match served.scheduler.submit(requests) {
                Err(Refusal::Busy { .. }) if count > 1 => count /= 2,
                // Of those that have begun none is sent away.
                Err(Refusal::Busy { .. }) if !embeddings.is_empty() => {
                    tokio::time::sleep(PATIENCE).await;
                }
                submitted => break submitted?,
            }
        };
        left.drain(..count);
        for generation in generations {
            embeddings.push(write(&embedding(generation).await?));
        }
    }
    Ok(Embedded { embeddings, tokens })
}

/// How many of these prompts, from the first, find room at once where nobody else runs; at least one.
fn runs_together(prompts: &[Vec<u32>], limits: &Limits) -> usize {
    let most = limits.most_running.min(limits.queue.saturating_add(limits.parallel));
    let most = if limits.state_slots > 0 { most.min(limits.state_slots) } else { most };
    let mut free = limits.kv_blocks;
    let fits = prompts.iter().take(most).take_while(|ids| {
        let left = free.checked_sub(blocks_for(ids.len()));
        free = left.unwrap_or(0);
        left.is_some()
    });
    fits.count().max(1)
}

/// Waits for an embedding.
async fn embedding(mut generation: Generation) -> Result<Vec<f32>, ApiError> {
    loop {
        match generation.next().await {
            Some(Event::Embedding(embedding)) => return Ok(embedding),
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(Event::Begun { .. } | Event::Scored(_) | Event::Token(_)) => {}
            Some(Event::Ended(_)) | None => return Err(ApiError::Closed),
        }
    }
}

/// Little-endian f32, as OpenAI's clients read them.
fn base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Chunk;

    #[test]
    fn as_many_texts_run_together_as_there_are_blocks_and_places_for() {
        let limits = Limits {
            context: 1024,
            parallel: 2,
            most_running: 20,
            kv_blocks: 2 * blocks_for(1024),
            state_slots: 0,
            chunk: Chunk::exactly(64),
            prompt_rows: 64,
            queue: 10,
        };
        let texts = |count: usize, tokens: usize| vec![vec![1; tokens]; count];
        assert_eq!(runs_together(&texts(50, 1), &limits), 12, "places");
        let limits = Limits { queue: 64, ..limits };
        assert_eq!(runs_together(&texts(50, 1), &limits), 20, "sequences");
        let recurrent = Limits { state_slots: 6, ..limits };
        assert_eq!(runs_together(&texts(50, 1), &recurrent), 6, "slots");
        assert_eq!(runs_together(&texts(3, 1), &limits), 3, "texts");
        assert_eq!(runs_together(&texts(50, 512), &limits), 4, "blocks");
        assert_eq!(runs_together(&texts(50, 5000), &limits), 1, "too long: refused by itself");
    }
}
