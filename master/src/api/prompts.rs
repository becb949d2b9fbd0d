//! Prompts of requests as token ids: a few texts at a time, on threads where they hold up nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Served;
use super::error::ApiError;
use super::wire::Prompt;
use crate::aside::leaves_memory;
use crate::text::{self, Ending, LARGE_BYTES, Text, Told, conversation_bytes};

/// What a template is told of a request.
pub(super) struct Talk {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Vec<Value>,
    /// What it is told beside these.
    pub(super) variables: BTreeMap<String, Value>,
    pub(super) ending: Ending,
}

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
            all.push(self.text_ids(text, true).await?);
        }
        Ok(all)
    }

    /// A text as token ids, with the tokens around it that the model expects there if `add_special`.
    pub(super) async fn text_ids(
        self: &Arc<Self>,
        text: String,
        add_special: bool,
    ) -> Result<Vec<u32>, ApiError> {
        let (served, bytes) = (self.clone(), text.len());
        let read = move || {
            let room = served.scheduler.limits().context;
            Ok(served.text.encode_within(&text, add_special, room)?)
        };
        self.turns.take(bytes, read).await
    }

    /// What `read` makes of a conversation, within so many tokens.
    pub(super) async fn read_chat<T: Send + 'static>(
        self: &Arc<Self>,
        talk: Talk,
        read: impl FnOnce(&Text, Told<'_>, usize) -> Result<T, text::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let bytes = conversation_bytes(&talk.messages, &talk.tools);
        let served = self.clone();
        let work = move || {
            let Talk { messages, tools, variables, ending } = &talk;
            let told = Told { messages, tools, variables, ending: *ending };
            Ok(read(&served.text, told, served.scheduler.limits().context)?)
        };
        self.turns.take(bytes, work).await
    }
}
