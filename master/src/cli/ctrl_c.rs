//! Ctrl-C and requests to terminate. They are heard in one place, from the first moment to the last; they end a command
//! at once, whatever it waits for, until it says that it ends in order itself.
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::Error;

/// How long a command that is ended may take to let go of what it has.
const LAST: Duration = Duration::from_millis(500);

/// What a command has of it. A handle: clones share one.
#[derive(Clone, Debug, Default)]
pub(super) struct CtrlC(watch::Sender<Heard>);

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    times: usize,
    taken_over: bool,
}

/// Those that a command answers itself.
#[derive(Debug)]
pub(super) struct Interrupts {
    heard: watch::Receiver<Heard>,
    seen: usize,
}

impl CtrlC {
    /// From now on the caller answers each of them.
    pub(super) fn take_over(&self) -> Interrupts {
        let mut seen = 0;
        self.0.send_modify(|heard| {
            heard.taken_over = true;
            seen = heard.times; // Those that came before are answered already.
        });
        Interrupts { heard: self.0.subscribe(), seen }
    }

    /// Notes that there is one; whether the command answers it.
    fn hear(&self) -> bool {
        let mut taken_over = false;
        self.0.send_modify(|heard| {
            heard.times += 1;
            taken_over = heard.taken_over;
        });
        taken_over
    }
}

impl Interrupts {
    /// Completes with the next one, even if it came before this call. May be dropped at any time.
    pub(super) async fn next(&mut self) {
        let seen = self.seen;
        let closed = self.heard.wait_for(|heard| heard.times > seen).await.is_err();
        if closed {
            std::future::pending().await // The program ends.
        }
        self.seen += 1;
    }
}

/// Runs a command to its end, which `interrupted`, called for one after the other, may bring about.
///
/// The command runs on a thread of the runtime, which then gives itself what it waits for: each token that another
/// thread hands to it would have that thread wake it. Interrupts are heard on this one, so that a command that keeps its
/// thread busy ends as well.
///
/// # Errors
/// Those of the command, or [`Error::Interrupted`].
pub(super) fn run<C, I>(
    runtime: &Runtime,
    command: impl FnOnce(CtrlC) -> C,
    mut interrupted: impl FnMut() -> I,
) -> Result<(), Error>
where
    C: Future<Output = Result<(), Error>> + Send + 'static,
    I: Future<Output = ()>,
{
    let ctrl_c = CtrlC::default();
    runtime.block_on(async {
        let mut next = pin!(interrupted());
        let mut ending = tokio::spawn(command(ctrl_c.clone()));
        loop {
            tokio::select! {
                biased;
                end = &mut ending => {
                    return end.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                }
                () = &mut next => next.set(interrupted()),
            }
            if !ctrl_c.hear() {
                ending.abort();
                // Files and processes of its own go now; one that blocks its thread goes with the program.
                tokio::time::timeout(LAST, ending).await.ok();
                return Err(Error::Interrupted);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::{Notify, oneshot};
    use tokio::task::block_in_place;

    use super::*;

    fn runtime() -> Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime")
    }

    /// Interrupts on demand.
    #[derive(Clone, Default)]
    struct Keys(Arc<Notify>);

    impl Keys {
        fn press(&self) {
            self.0.notify_one();
        }

        fn heard(&self) -> impl FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
            let notify = self.0.clone();
            move || {
                let notify = notify.clone();
                Box::pin(async move { notify.notified().await })
            }
        }
    }

    #[test]
    fn a_command_that_waits_is_dropped_before_the_program_ends() {
        struct Tidy(Arc<AtomicBool>);
        impl Drop for Tidy {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (runtime, keys, tidied) =
            (runtime(), Keys::default(), Arc::new(AtomicBool::new(false)));
        let (mine, pressed) = (Tidy(tidied.clone()), keys.clone());
        let command = |_| async move {
            let _mine = mine;
            pressed.press();
            std::future::pending().await
        };
        let end = run(&runtime, command, keys.heard());
        assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
        assert!(tidied.load(Ordering::Relaxed));
    }

    #[test]
    fn a_command_that_blocks_its_thread_is_not_waited_for() {
        let (runtime, keys) = (runtime(), Keys::default());
        let (let_go, wait) = oneshot::channel::<()>();
        let pressed = keys.clone();
        let command = |_| async move {
            pressed.press();
            block_in_place(|| wait.blocking_recv().ok());
            Ok(())
        };
        let end = run(&runtime, command, keys.heard());
        assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
        drop(let_go);
    }

    #[test]
    fn a_command_that_takes_over_answers_each_one_and_its_result_counts() {
        let (runtime, keys) = (runtime(), Keys::default());
        let pressed = keys.clone();
        let command = |ctrl_c: CtrlC| async move {
            let mut interrupts = ctrl_c.take_over();
            for _ in 0..3 {
                pressed.press();
                interrupts.next().await;
            }
            Err(Error::NoSystem)
        };
        let end = run(&runtime, command, keys.heard());
        assert!(matches!(end, Err(Error::NoSystem)), "{end:?}");
        let end = run(&runtime, |_| async { Ok(()) }, keys.heard());
        assert!(end.is_ok(), "{end:?}");
    }

    #[test]
    fn two_at_once_are_two() {
        let ctrl_c = CtrlC::default();
        assert!(!ctrl_c.hear(), "nobody has taken over");
        let mut interrupts = ctrl_c.take_over();
        assert!(ctrl_c.hear() && ctrl_c.hear());
        let mut next = || interrupts.next().now_or_never().is_some();
        assert!(next() && next());
        assert!(!next(), "the one before it took over is answered");
    }
}
