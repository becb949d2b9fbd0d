//! Ctrl-C and requests to terminate. They are heard in one place, from the first moment to the last; they end a command
//! at once, whatever it waits for, until it says that it ends in order itself.
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinError;

use super::Error;

/// How long a command that is ended may take to let go of what it has. Only one that blocks its thread takes as long.
const LAST: Duration = Duration::from_secs(2);
/// How long a read or a hash that is under way may hold up the end.
const LEFT: Duration = Duration::from_millis(500);
/// How many may wait for a command that answers them itself. One more, and it is stuck.
const UNANSWERED: usize = 2;

/// What a command has of it. A handle: clones share one.
#[derive(Clone, Debug, Default)]
pub(super) struct CtrlC(watch::Sender<Heard>);

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    times: usize,
    /// How many of them are answered; none while no command answers them.
    answered: Option<usize>,
}

/// Those that a command answers itself, until it drops this.
#[derive(Debug)]
pub(super) struct Interrupts(CtrlC);

impl CtrlC {
    /// From now on the caller answers each of them.
    pub(super) fn take_over(&self) -> Interrupts {
        self.forget();
        Interrupts(self.clone())
    }

    fn forget(&self) {
        self.0.send_modify(|heard| heard.answered = Some(heard.times));
    }

    /// Notes that there is one; whether the command answers it.
    fn hear(&self) -> bool {
        let mut answers = false;
        self.0.send_modify(|heard| {
            heard.times += 1;
            answers = heard.answered.is_some_and(|answered| heard.times - answered <= UNANSWERED);
        });
        answers
    }
}

impl Interrupts {
    /// Completes with the next one, even if it came before this call. May be dropped at any time.
    pub(super) async fn next(&mut self) {
        let waits = |heard: &Heard| heard.answered.is_none_or(|answered| heard.times > answered);
        self.0.0.subscribe().wait_for(waits).await.ok(); // It cannot fail: the sender is here.
        self.0.0.send_modify(|heard| heard.answered = heard.answered.map(|answered| answered + 1));
    }

    /// Those that nobody has waited for come too late for what they were meant for.
    pub(super) fn forget(&mut self) {
        self.0.forget();
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.0.send_modify(|heard| heard.answered = None);
    }
}

/// Runs a command to its end, which `interrupts`, called for once, may bring about.
///
/// The command runs on a thread of the runtime, which then gives itself what it waits for: each token that another
/// thread hands to it would have that thread wake it. Interrupts are heard on this one, which has a runtime of its own,
/// so that they are heard whatever the other threads do.
///
/// Then the runtime ends, too, but for one whose command still computes when it has been told to stop: that goes on
/// until the program has ended, where it would find a runtime without clocks, and panic.
///
/// # Errors
/// Those of the command, [`Error::Interrupted`], or [`Error::Start`] if there is no more room for a runtime.
pub(super) fn run<C, I>(
    runtime: Runtime,
    command: impl FnOnce(CtrlC) -> C,
    interrupts: impl FnOnce() -> I,
) -> Result<(), Error>
where
    C: Future<Output = Result<(), Error>> + Send + 'static,
    I: Stream<Item = ()> + Unpin,
{
    let ears = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ctrl_c = CtrlC::default();
    let (result, is_over) = ears.map_err(|source| Error::Start { source })?.block_on(async {
        let mut interrupts = interrupts();
        let mut ending = runtime.spawn(command(ctrl_c.clone()));
        loop {
            tokio::select! {
                biased;
                end = &mut ending => {
                    let panicked = |panic: JoinError| std::panic::resume_unwind(panic.into_panic());
                    return (end.unwrap_or_else(panicked), true);
                }
                Some(()) = interrupts.next() => {}
            }
            if !ctrl_c.hear() {
                ending.abort();
                // Files and processes of its own go now; one that blocks its thread goes with the program.
                let ended = tokio::time::timeout(LAST, ending).await;
                return (Err(Error::Interrupted), ended.is_ok());
            }
        }
    });
    match is_over {
        true => runtime.shutdown_timeout(LEFT),
        false => std::mem::forget(runtime),
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use futures_util::stream::{BoxStream, poll_fn};
    use tokio::sync::mpsc;

    use super::*;

    fn runtime() -> Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime")
    }

    /// Interrupts on demand.
    fn keys() -> (mpsc::UnboundedSender<()>, impl FnOnce() -> BoxStream<'static, ()>) {
        let (press, mut pressed) = mpsc::unbounded_channel();
        (press, || poll_fn(move |cx| pressed.poll_recv(cx)).boxed())
    }

    #[test]
    fn a_command_that_waits_is_dropped_before_the_program_ends() {
        struct Tidy(Arc<AtomicBool>);
        impl Drop for Tidy {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let tidied = Arc::new(AtomicBool::new(false));
        let (press, pressed) = keys();
        let mine = Tidy(tidied.clone());
        let command = |_| async move {
            let _mine = mine;
            press.send(()).expect("heard");
            std::future::pending().await
        };
        let end = run(runtime(), command, pressed);
        assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
        assert!(tidied.load(Ordering::Relaxed));
    }

    #[test]
    fn a_command_that_still_computes_when_the_program_ends_does_not_panic() {
        const LIMIT: Duration = Duration::from_secs(60);
        /// Tells how it was dropped.
        struct Dropped(std::sync::mpsc::Sender<bool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.send(std::thread::panicking()).ok();
            }
        }
        let (press, pressed) = keys();
        let (drops, dropped) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let mine = Dropped(drops);
        let command = |_| async move {
            let _mine = mine;
            press.send(()).expect("heard");
            goes_on.recv_timeout(LIMIT).expect("told to go on");
            tokio::time::sleep(LIMIT).await;
            Ok(())
        };
        let end = run(runtime(), command, pressed);
        assert!(matches!(end, Err(Error::Interrupted)), "{end:?}");
        go_on.send(()).expect("it waits for that");
        assert_eq!(dropped.recv_timeout(LIMIT), Ok(false));
    }

    /// Keeps the only thread of its runtime busy: nothing else can go on there. The signal's handler stays for as long
    /// as the process.
    #[cfg(unix)]
    #[test]
    fn a_command_that_never_yields_ends_by_a_signal() {
        const LIMIT: Duration = Duration::from_secs(60);
        let (tell, told) = std::sync::mpsc::channel();
        let go_on = Arc::new(AtomicBool::new(true));
        let goes_on = go_on.clone();
        std::thread::spawn(move || {
            let command = |_| async move {
                let this = rustix::process::getpid();
                rustix::process::kill_process(this, rustix::process::Signal::INT).expect("sent");
                while goes_on.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                Ok(())
            };
            tell.send(run(runtime(), command, cake_platform::interrupts)).expect("waited for");
        });
        let end = told.recv_timeout(LIMIT);
        go_on.store(false, Ordering::Relaxed);
        assert!(matches!(end, Ok(Err(Error::Interrupted))), "{end:?}");
    }

    #[test]
    fn a_command_that_takes_over_answers_each_one_and_its_result_counts() {
        let (press, pressed) = keys();
        let command = |ctrl_c: CtrlC| async move {
            let mut interrupts = ctrl_c.take_over();
            for _ in 0..2 * UNANSWERED {
                press.send(()).expect("heard");
                interrupts.next().await;
            }
            Err(Error::NoSystem)
        };
        let end = run(runtime(), command, pressed);
        assert!(matches!(end, Err(Error::NoSystem)), "{end:?}");
        let end = run(runtime(), |_| async { Ok(()) }, keys().1);
        assert!(end.is_ok(), "{end:?}");
    }

    #[test]
    fn two_at_once_are_two_and_one_more_than_may_wait_ends_the_command() {
        let ctrl_c = CtrlC::default();
        assert!(!ctrl_c.hear(), "nobody has taken over");
        let mut interrupts = ctrl_c.take_over();
        assert!(ctrl_c.hear() && ctrl_c.hear());
        let mut next = || interrupts.next().now_or_never().is_some();
        assert!(next() && next());
        assert!(!next(), "the one before it took over is answered");
        assert!(ctrl_c.hear() && ctrl_c.hear() && !ctrl_c.hear(), "nobody answers");
        let interrupts = ctrl_c.take_over();
        assert!(ctrl_c.hear());
        drop(interrupts);
        assert!(!ctrl_c.hear(), "nobody will answer");
    }

    #[test]
    fn one_that_came_too_late_is_forgotten() {
        let ctrl_c = CtrlC::default();
        let mut interrupts = ctrl_c.take_over();
        assert!(ctrl_c.hear() && ctrl_c.hear());
        assert!(interrupts.next().now_or_never().is_some());
        interrupts.forget();
        assert!(interrupts.next().now_or_never().is_none());
        assert!(ctrl_c.hear());
        assert!(interrupts.next().now_or_never().is_some(), "the next one counts");
    }
}
