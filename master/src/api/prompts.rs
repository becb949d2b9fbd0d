//! Prompts of requests as token ids: a few texts at a time, on threads where they hold up nobody.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::Served;
use super::error::ApiError;
use super::wire::Prompt;
use crate::aside::{aside, leaves_memory};

/// Most texts that are read at a time: each may take a core, and some 250 bytes of memory for each of its own.
const AT_ONCE: u32 = 2;
/// Bytes from which on a text is read alone, aside. So two at a time take some 128 MiB, or one takes what it takes.
const ALONE_BYTES: usize = 256 << 10;

/// Who may read prompts.
#[derive(Debug)]
pub struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE as usize)))
    }
}

impl Turns {
    /// Does `work` with a text of so many bytes when its turn comes. Whoever goes away before, costs nothing; who goes
    /// away later is not waited for.
    async fn take<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let is_alone = bytes >= ALONE_BYTES;
        let turns = if is_alone { AT_ONCE } else { 1 };
        let turn = self.0.clone().acquire_many_owned(turns).await.map_err(|_| ApiError::Closed)?;
        let read = move || {
            let done = work();
            drop(turn);
            done
        };
        let done = match is_alone {
            true => aside(read).await.ok().flatten(),
            false => spawn_blocking(read).await.ok(),
        };
        done.unwrap_or(Err(ApiError::PromptPanicked))
    }
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
        if bytes >= ALONE_BYTES {
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

    /// A conversation as token ids.
    pub(super) async fn chat_ids(
        self: &Arc<Self>,
        messages: Vec<Value>,
        tools: Vec<Value>,
    ) -> Result<Vec<u32>, ApiError> {
        let bytes = messages.iter().chain(&tools).map(bytes).sum();
        let served = self.clone();
        let read = move || {
            let room = served.scheduler.limits().context;
            Ok(served.text.encode_chat_within(&messages, &tools, room)?)
        };
        self.turns.take(bytes, read).await
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn large_texts_are_read_alone_and_others_two_at_a_time() {
        let (turns, reading) = (Turns::default(), Arc::new(AtomicUsize::new(0)));
        let most = |bytes: usize| {
            let all = (0..4).map(|_| {
                let reading = reading.clone();
                turns.take(bytes, move || {
                    let others = reading.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    reading.fetch_sub(1, Ordering::SeqCst);
                    Ok(others + 1)
                })
            });
            futures_util::future::try_join_all(all)
        };
        let alone = most(ALONE_BYTES).await.expect("read");
        assert_eq!(alone, [1; 4]);
        let together = most(ALONE_BYTES - 1).await.expect("read");
        assert!(together.iter().all(|reading| *reading <= AT_ONCE as usize), "{together:?}");
    }

    #[tokio::test]
    async fn whoever_leaves_has_no_more_texts_read() {
        let (turns, read) = (Turns::default(), Arc::new(AtomicUsize::new(0)));
        let held = turns.0.clone().acquire_many_owned(AT_ONCE).await.expect("free");
        let waits = tokio::time::timeout(Duration::from_millis(20), {
            let read = read.clone();
            turns.take(1, move || Ok(read.fetch_add(1, Ordering::SeqCst)))
        });
        assert!(waits.await.is_err(), "there is no turn");
        drop(held);
        turns.take(1, || Ok(())).await.expect("free again");
        assert_eq!(read.load(Ordering::SeqCst), 0);
    }
}
