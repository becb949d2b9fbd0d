//! Prompts of requests as token ids: a few texts at a time, on threads where they hold up nobody.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::Served;
use super::error::ApiError;
use super::wire::Prompt;
use crate::aside::{aside, leaves_memory};

/// Most small texts that are read at a time: each may take a core, and some 250 bytes of memory for each of its own, so
/// that they take some 128 MiB together.
const AT_ONCE: usize = 2;
/// Bytes from which on a text is large: read aside, one at a time. Small ones do not wait for it.
const LARGE_BYTES: usize = 256 << 10;

/// Who may read prompts.
#[derive(Debug)]
pub struct Turns {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        let [small, large] = [AT_ONCE, 1].map(|turns| Arc::new(Semaphore::new(turns)));
        Self { small, large }
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
        let is_large = bytes >= LARGE_BYTES;
        let turns = if is_large { &self.large } else { &self.small };
        let turn = turns.clone().acquire_owned().await.map_err(|_| ApiError::Closed)?;
        let read = move || {
            let done = work();
            drop(turn);
            done
        };
        let done = match is_large {
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    /// Nothing here takes longer, unless it never happens.
    const LIMIT: Duration = Duration::from_secs(20);

    /// As many texts of this size as there are turns are read, all at once; then another one has none.
    async fn takes_turns(bytes: usize, at_once: usize) {
        let turns = Arc::new(Turns::default());
        let (begins, begun) = mpsc::channel();
        let mut reading = Vec::new();
        for _ in 0..at_once {
            let (end, ends) = mpsc::channel::<()>();
            let (turns, begins) = (turns.clone(), begins.clone());
            let read = async move {
                let work = move || {
                    begins.send(()).expect("somebody waits");
                    ends.recv_timeout(LIMIT).expect("told to end");
                    Ok(())
                };
                turns.take(bytes, work).await
            };
            reading.push((tokio::spawn(read), end));
        }
        for _ in 0..at_once {
            begun.recv_timeout(LIMIT).expect("it is read");
        }
        let mut next = Box::pin(turns.take(bytes, || Ok(())));
        assert!(next.as_mut().now_or_never().is_none(), "there is no turn");
        for (read, end) in reading {
            end.send(()).expect("it waits for that");
            read.await.expect("no panic").expect("read");
        }
        next.await.expect("it is its turn");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_texts_are_read_one_at_a_time_and_small_ones_two() {
        takes_turns(LARGE_BYTES, 1).await;
        takes_turns(LARGE_BYTES - 1, AT_ONCE).await;
    }

    #[tokio::test]
    async fn small_texts_do_not_wait_for_a_large_one() {
        let turns = Turns::default();
        let _held = turns.large.clone().acquire_owned().await.expect("free");
        let mut large = Box::pin(turns.take(LARGE_BYTES, || Ok(())));
        assert!(large.as_mut().now_or_never().is_none(), "another one is read");
        turns.take(LARGE_BYTES - 1, || Ok(())).await.expect("its turns are its own");
    }

    #[tokio::test]
    async fn whoever_leaves_has_no_more_texts_read() {
        let (turns, read) = (Turns::default(), Arc::new(AtomicBool::new(false)));
        let held = turns.small.clone().acquire_many_owned(AT_ONCE as u32).await.expect("free");
        let leaves = turns.take(1, {
            let read = read.clone();
            move || Ok(read.swap(true, Ordering::SeqCst))
        });
        assert!(leaves.now_or_never().is_none(), "there is no turn");
        drop(held);
        turns.take(1, || Ok(())).await.expect("free again");
        assert!(!read.load(Ordering::SeqCst));
    }
}
