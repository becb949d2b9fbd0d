//! Telling a stage that a step will come to it soon.
//!
//! While one step is on its way, all stages but one are idle, and what is to take the step from the
//! network has not run since the stage computed: reading its weights has driven that code and data out of
//! the processor's caches, the system's too, and the processor sleeps. A frame that says nothing brings
//! them back while nobody waits. It took a quarter to a third off a hop's time between workers of one
//! thread that stream 1 GB of weights per token.
use std::sync::Arc;
use std::time::Duration;

use cake_proto::step::announcement_frame;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Shared;

/// A stage that computes for less than this before the announced one leaves caches much as they are.
const LEAST: Duration = Duration::from_millis(2);

/// Which remote stages to tell, and how long after a step left, of one that takes what the last one took:
/// each while the stage before it is half way, the first one while the last is, as the next step will come
/// to it. Those that compute are left alone.
///
/// * `stage_us`: microseconds each stage computes, in the order of the chain.
/// * `begin`: stages before the first remote one.
fn schedule(stage_us: &[u32], begin: usize) -> Vec<(Duration, usize)> {
    let stages = stage_us.len();
    let mut passed = Duration::ZERO;
    let mut told = Vec::new();
    for (index, us) in stage_us.iter().enumerate() {
        let time = Duration::from_micros(u64::from(*us));
        let next = (index + 1) % stages;
        if next >= begin && stages > 1 && time >= LEAST {
            told.push((passed + time / 2, next - begin));
        }
        passed += time;
    }
    told
}

/// Tells stages about each step that leaves while no other is on its way. Never completes.
pub(super) async fn announce(shared: Arc<Shared>, begin: usize) {
    let mut sent = shared.sent.subscribe();
    while sent.changed().await.is_ok() {
        let left = Instant::now();
        let step = *sent.borrow_and_update();
        let schedule = schedule(&shared.lock().stage_us, begin);
        for (after, index) in schedule {
            // A step may take far less than the last one, such as the first one after a prompt.
            if is_later(&mut sent, left + after).await || !shared.is_alone(step) {
                break; // Answered already, or there is enough on its way.
            }
            if let Some(remote) = shared.remotes.get(index) {
                remote.frames.try_send(announcement_frame()).ok(); // A full queue needs none.
            }
        }
    }
}

/// Waits until `at`; returns whether another step was sent before, which stays to be seen.
async fn is_later(sent: &mut watch::Receiver<u64>, at: Instant) -> bool {
    tokio::select! {
        () = sleep_until(at) => false,
        _ = sent.changed() => {
            sent.mark_changed();
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{leave, shared};
    use super::*;

    const MS: u32 = 1000;

    fn told(stage_us: &[u32], begin: usize) -> Vec<(u64, usize)> {
        let micros = |(after, index): (Duration, usize)| (after.as_micros() as u64, index);
        schedule(stage_us, begin).into_iter().map(micros).collect()
    }

    #[test]
    fn a_stage_is_told_while_the_one_before_it_is_half_way() {
        assert_eq!(told(&[10 * MS, 30 * MS], 0), [(5_000, 1), (25_000, 0)]);
        // The master's own layers come first, and need no telling.
        assert_eq!(told(&[10 * MS, 30 * MS, 20 * MS], 1), [(5_000, 0), (25_000, 1)]);
    }

    #[test]
    fn nobody_is_told_of_what_follows_at_once_or_on_itself() {
        assert_eq!(told(&[MS, 30 * MS, MS], 0), [(16_000, 2)]);
        assert_eq!(told(&[30 * MS], 0), []);
        assert_eq!(told(&[30 * MS], 1), []);
        assert_eq!(told(&[], 0), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_told_of_though_the_one_before_was_to_take_long() {
        let (shared, [mut first, mut second]) = shared();
        shared.lock().stage_us = vec![3000 * MS, 3000 * MS];
        let announcing = tokio::spawn(announce(shared.clone(), 0));
        tokio::task::yield_now().await; // It subscribes.
        let _one = leave(&shared, 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
        shared.lock().steps.clear();
        shared.lock().stage_us = vec![4 * MS, 4 * MS];
        let _two = leave(&shared, 2);
        let began = Instant::now();
        assert_eq!(second.recv().await, Some(announcement_frame()));
        assert_eq!(first.recv().await, Some(announcement_frame()));
        assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
        announcing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn both_stages_are_told_of_a_step_that_is_alone_and_none_of_several() {
        let (shared, [mut first, mut second]) = shared();
        let announcing = tokio::spawn(announce(shared.clone(), 0));
        tokio::task::yield_now().await; // It subscribes.
        let _one = leave(&shared, 1);
        assert_eq!(second.recv().await, Some(announcement_frame()));
        assert_eq!(first.recv().await, Some(announcement_frame()));
        let _two = leave(&shared, 2);
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        announcing.abort();
    }
}
