//! The queue of steps in every order that its threads may take turns in, as far as some preemptions go: the very code
//! of its two ends, on a channel with the contract of the real one. A thread that waits for ever is a deadlock to loom.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use loom::model::Builder;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The names that the queue takes from its neighbour.
mod sync {
    use std::collections::VecDeque;

    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};

    /// What tokio's bounded channel promises: a sender waits for room or for the receiver's end, the receiver for a
    /// value or for the last sender's end.
    #[derive(Debug)]
    struct Shared<J> {
        queue: Mutex<Queue<J>>,
        changed: Condvar,
    }

    #[derive(Debug)]
    struct Queue<J> {
        waiting: VecDeque<J>,
        room: usize,
        senders: usize,
        receiver: bool,
    }

    #[derive(Debug)]
    pub(super) struct Sender<J>(Arc<Shared<J>>);

    #[derive(Debug)]
    pub(super) struct Receiver<J>(Arc<Shared<J>>);

    pub(super) fn channel<J>(room: usize) -> (Sender<J>, Receiver<J>) {
        let queue = Queue { waiting: VecDeque::new(), room, senders: 1, receiver: true };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new() });
        (Sender(shared.clone()), Receiver(shared))
    }

    impl<J> Sender<J> {
        /// Waits on this thread, where tokio's would wait in its task.
        pub(super) async fn send(&self, job: J) -> Result<(), J> {
            let mut queue = self.0.queue.lock().unwrap();
            while queue.receiver && queue.waiting.len() == queue.room {
                queue = self.0.changed.wait(queue).unwrap();
            }
            if !queue.receiver {
                return Err(job);
            }
            queue.waiting.push_back(job);
            self.0.changed.notify_all();
            Ok(())
        }
    }

    impl<J> Clone for Sender<J> {
        fn clone(&self) -> Self {
            self.0.queue.lock().unwrap().senders += 1;
            Self(self.0.clone())
        }
    }

    impl<J> Drop for Sender<J> {
        fn drop(&mut self) {
            self.0.queue.lock().unwrap().senders -= 1;
            self.0.changed.notify_all();
        }
    }

    impl<J> Receiver<J> {
        pub(super) fn blocking_recv(&mut self) -> Option<J> {
            let mut queue = self.0.queue.lock().unwrap();
            loop {
                if let Some(job) = queue.waiting.pop_front() {
                    self.0.changed.notify_all();
                    return Some(job);
                }
                if queue.senders == 0 {
                    return None;
                }
                queue = self.0.changed.wait(queue).unwrap();
            }
        }
    }

    impl<J> Drop for Receiver<J> {
        fn drop(&mut self) {
            self.0.queue.lock().unwrap().receiver = false;
            self.0.changed.notify_all();
        }
    }
}

#[allow(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "queue.rs"]
mod queue;

use queue::{StepQueue, step_queue};

/// Runs `scenario` in all orders with at most so many preemptions: what goes wrong does so with few.
fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// Sends as the runtime does: the place is taken under the lock, the step sent outside of it. Whether it was taken.
fn submit(loaded: &Mutex<Option<StepQueue<u32>>>, job: u32) -> bool {
    let place = {
        let loaded = loaded.lock().unwrap();
        let Some(queue) = &*loaded else { return false };
        queue.place()
    };
    match pin!(place.send(job)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(sent) => sent.is_ok(),
        Poll::Pending => unreachable!("it waits on this thread"),
    }
}

#[test]
fn whoever_unloads_waits_for_no_stream_and_no_stream_for_ever() {
    check(2, || {
        let (first, mut turns) = step_queue(1);
        let loaded = Arc::new(Mutex::new(Some(first)));
        let engine = thread::spawn(move || {
            let mut computed = Vec::new();
            while let Some(job) = turns.take() {
                computed.push(job);
            }
            computed
        });
        let stream = thread::spawn({
            let loaded = loaded.clone();
            move || [1, 2].map(|job| submit(&loaded, job))
        });
        let taken = loaded.lock().unwrap().take().unwrap();
        taken.end();
        let computed = engine.join().unwrap();
        let sent = stream.join().unwrap();
        // In order, none twice, and none that its stream does not know to have been taken.
        assert!([1, 2].starts_with(&computed), "{computed:?}");
        assert!(computed.iter().all(|job| sent[*job as usize - 1]), "{computed:?}, {sent:?}");
    });
}

#[test]
fn without_an_end_every_step_is_computed_once_and_in_order() {
    check(2, || {
        let (first, mut turns) = step_queue(1);
        let loaded = Arc::new(Mutex::new(Some(first)));
        let stream = thread::spawn({
            let loaded = loaded.clone();
            move || [1, 2].map(|job| submit(&loaded, job))
        });
        assert_eq!([turns.take(), turns.take()], [Some(1), Some(2)]);
        assert_eq!(stream.join().unwrap(), [true, true]);
    });
}

#[test]
fn once_stopped_no_step_is_begun() {
    check(3, || {
        let (first, mut turns) = step_queue(2);
        let loaded = Mutex::new(Some(first));
        assert!(submit(&loaded, 1) && submit(&loaded, 2));
        let told = Arc::new(Mutex::new(false));
        let engine = thread::spawn({
            let told = told.clone();
            move || {
                loop {
                    let stopped = *told.lock().unwrap();
                    let job = turns.take();
                    assert!(!stopped || job.is_none(), "{job:?} was begun");
                    if job.is_none() {
                        return;
                    }
                }
            }
        });
        let queue = loaded.lock().unwrap().take().unwrap();
        queue.stop();
        *told.lock().unwrap() = true;
        queue.end();
        engine.join().unwrap();
    });
}
