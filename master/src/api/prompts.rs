//! Prompts of requests as token ids: a few at a time, on threads where they hold up nobody.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::Served;
use super::error::ApiError;
use super::wire::Prompt;

/// Most requests whose prompts are read at a time: each may take a core, and some hundred bytes for each of
/// its own.
const AT_ONCE: usize = 2;
/// Bytes of text from which on the memory that they took is given back to the system at once.
const LARGE_BYTES: usize = 256 << 10;

/// Who may read prompts.
#[derive(Debug)]
pub struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Served {
    /// Does `work` for a request of so many bytes when its turn comes. Whoever goes away before, costs nothing.
    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.turns.0.clone().acquire_owned().await.map_err(|_| ApiError::Closed)?;
        let served = self.clone();
        let done = spawn_blocking(move || {
            let done = work(&served);
            if bytes >= LARGE_BYTES {
                cake_engine::give_back();
            }
            drop(turn);
            done
        });
        done.await.unwrap_or(Err(ApiError::PromptPanicked))
    }

    /// Prompts as token ids. Special tokens in them are read as such: many a client sends what a template made.
    pub(super) async fn ids(self: &Arc<Self>, prompt: Prompt) -> Result<Vec<Vec<u32>>, ApiError> {
        let texts = match prompt {
            Prompt::Texts(texts) => texts,
            Prompt::Ids(ids) => return Ok(ids),
        };
        let bytes = texts.iter().map(String::len).sum();
        self.in_turn(bytes, |served| {
            let room = served.scheduler.limits().context;
            let encode = |text: String| Ok(served.text.encode_within(&text, true, room)?);
            texts.into_iter().map(encode).collect()
        })
        .await
    }

    /// A conversation as token ids.
    pub(super) async fn chat_ids(
        self: &Arc<Self>,
        messages: Vec<Value>,
        tools: Vec<Value>,
    ) -> Result<Vec<u32>, ApiError> {
        let bytes = messages.iter().chain(&tools).map(bytes).sum();
        self.in_turn(bytes, move |served| {
            let room = served.scheduler.limits().context;
            Ok(served.text.encode_chat_within(&messages, &tools, room)?)
        })
        .await
    }
}

/// Bytes of the strings in a value.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
