//! Whose prompt is read: a few small ones at a time, and a large one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::error::ApiError;
use crate::aside::aside;
use crate::text::LARGE_BYTES;

/// Most small texts that are read at a time: each may take a core, and memory of some 250 times its length, 64 MiB.
const SMALL_AT_ONCE: usize = 2;
/// Most large ones, which are read aside: one may take all the memory that texts are to take.
const LARGE_AT_ONCE: usize = 1;
/// Longest that a large one waits for its turn: meanwhile it keeps room that others' bodies need.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who may read prompts.
#[derive(Debug)]
pub struct Turns {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        let turns = |at_once| Arc::new(Semaphore::new(at_once));
        Self { small: turns(SMALL_AT_ONCE), large: turns(LARGE_AT_ONCE) }
    }
}

impl Turns {
    /// Does `work` with a text of so many bytes when its turn comes. Whoever goes away before, costs nothing; who goes
    /// away later is not waited for.
    pub(super) async fn take<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let is_large = bytes >= LARGE_BYTES;
        let turn = match is_large {
            true => {
                let turn = timeout(PATIENCE, self.large.clone().acquire_owned()).await;
                turn.map_err(|_| ApiError::ManyLargeTexts)?
            }
            false => self.small.clone().acquire_owned().await,
        };
        let turn = turn.map_err(|_| ApiError::Closed)?;
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
        takes_turns(LARGE_BYTES, LARGE_AT_ONCE).await;
        takes_turns(LARGE_BYTES - 1, SMALL_AT_ONCE).await;
    }

    #[tokio::test]
    async fn small_texts_do_not_wait_for_a_large_one() {
        let turns = Turns::default();
        let _held = turns.large.clone().acquire_owned().await.expect("free");
        let mut large = Box::pin(turns.take(LARGE_BYTES, || Ok(())));
        assert!(large.as_mut().now_or_never().is_none(), "another one is read");
        let small = timeout(LIMIT, turns.take(LARGE_BYTES - 1, || Ok(())));
        small.await.expect("its turns are its own").expect("read");
    }

    #[tokio::test(start_paused = true)]
    async fn large_texts_do_not_wait_for_long() {
        let turns = Turns::default();
        let _held = turns.large.clone().acquire_owned().await.expect("free");
        let refused = turns.take(LARGE_BYTES, || Ok(())).await;
        assert!(matches!(refused, Err(ApiError::ManyLargeTexts)), "{refused:?}");
    }

    #[tokio::test]
    async fn whoever_leaves_has_no_more_texts_read() {
        let (turns, read) = (Turns::default(), Arc::new(AtomicBool::new(false)));
        let held =
            turns.small.clone().acquire_many_owned(SMALL_AT_ONCE as u32).await.expect("free");
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
