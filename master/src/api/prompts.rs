//! Prompts of requests as token ids: a few texts at a time, on threads where they hold up nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Served;
use super::error::ApiError;
use super::wire::Prompt;
use crate::aside::leaves_memory;
use crate::text::{ChatPrompt, LARGE_BYTES, conversation_bytes};

impl Served {
    /// Prompts as token ids. Special tokens in them are read as such: many a client sends what a template made. Each
    /// text has a turn of its own: others have theirs between two of them, and nobody reads on for a client that left.
    pub(super) async fn ids(self: &Arc<Self>, prompt: Prompt) -> Result<Vec<Vec<u32>>, ApiError> {
        let texts = match prompt {
            Prompt::Texts(texts) => texts,
            Prompt::Ids(ids) => return Ok(ids),
        };
        let bytes: usize = texts.iter().map(String::len).sum();
        let ids = self.ids_of(texts).await;
        if bytes >= LARGE_BYTES {
            leaves_memory(); // Many small texts are a large one.
        }
        ids
    }

    async fn ids_of(self: &Arc<Self>, texts: Vec<String>) -> Result<Vec<Vec<u32>>, ApiError> {
        let mut all = Vec::with_capacity(texts.len());
        for text in texts {
            let (served, bytes) = (self.clone(), text.len());
            let read = move || {
                let room = served.scheduler.limits().context;
                Ok(served.text.encode_within(&text, true, room)?)
            };
            all.push(self.turns.take(bytes, read).await?);
        }
        Ok(all)
    }

    /// A conversation as token ids; `variables` are what the template is told beside it.
    pub(super) async fn chat_ids(
        self: &Arc<Self>,
        messages: Vec<Value>,
        tools: Vec<Value>,
        variables: BTreeMap<String, Value>,
    ) -> Result<ChatPrompt, ApiError> {
        let bytes = conversation_bytes(&messages, &tools);
        let served = self.clone();
        let read = move || {
            let room = served.scheduler.limits().context;
            Ok(served.text.encode_chat_within(&messages, &tools, &variables, room)?)
        };
        self.turns.take(bytes, read).await
    }
}
