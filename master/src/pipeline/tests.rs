//! A pipeline that breaks while a worker takes nothing any more; what its parts' tests share.
use std::time::Duration;

use cake_stage::Job;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;

use super::*;

/// Longest that anything here may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Frames that the streams of [`shared`] hold.
const FRAMES: usize = 4;

/// Two remote stages that take 4 ms each, as the last answer said, and what is sent to them.
pub(super) fn shared() -> (Arc<Shared>, [Receiver<wire::StepFrame>; 2]) {
    let ((first, a), (second, b)) = (mpsc::channel(FRAMES), mpsc::channel(FRAMES));
    let remote = |name: &str, frames| Remote { name: name.to_owned(), frames, row_width: 4 };
    let shared = Shared {
        generation: 1,
        row_width: 4,
        wire: WireFormat::F32,
        next_step: AtomicU64::new(1),
        sent: watch::channel(0).0,
        left: AtomicU64::new(0),
        doubt: watch::channel(()).0,
        pending: Mutex::new(Pending { stage_us: vec![4000, 4000], ..Pending::default() }),
        broken: watch::channel(None).0,
        remotes: vec![remote("a", first), remote("b", second)],
        relayed: vec![false, false],
    };
    (Arc::new(shared), [a, b])
}

/// A step of this number is on its way.
pub(super) fn leave(shared: &Shared, step: u64) -> oneshot::Receiver<Result<Answer, Error>> {
    let (answer, ticket) = oneshot::channel();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
    let since = Instant::now();
    let asked = Some((Vec::new(), vec![0]));
    let waiting = Waiting { rows: 1, step_rows: 1, asked, since, answer, _permit: permit };
    shared.lock().steps.insert(step, waiting);
    shared.sent.send_replace(step);
    ticket
}

/// A row of the width of [`shared`].
pub(super) fn step(number: u64) -> Step {
    Step {
        step: number,
        generation: 1,
        items: Vec::new(),
        rows: 1,
        wanted: vec![0],
        stage_us: Vec::new(),
        idle_us: Vec::new(),
        hidden: vec![0.5; 4],
    }
}

/// What the last stage answers to it.
pub(super) fn answer(number: u64) -> Step {
    step(number).into_answer()
}

/// Sends the first stage what the master's own computed, until nothing more goes in.
async fn fill(shared: &Arc<Shared>) -> JoinHandle<()> {
    for number in 0..FRAMES {
        shared.after_local(Ok(step(number as u64))).await;
    }
    let (waiting, last) = (shared.clone(), FRAMES as u64);
    let sending = tokio::spawn(async move { waiting.after_local(Ok(step(last))).await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!sending.is_finished(), "the stream holds {FRAMES} frames");
    sending
}

#[tokio::test(start_paused = true)]
async fn a_step_for_a_worker_that_takes_nothing_ends_with_the_pipeline() {
    let (shared, [mut first, _second]) = shared();
    let ticket = leave(&shared, FRAMES as u64);
    let sending = fill(&shared).await;
    assert!(shared.is_pending(FRAMES as u64));
    shared.break_down(Error::Silent);
    tokio::time::timeout(Duration::from_secs(1), sending).await.expect("it ends").expect("it ran");
    assert!(!shared.is_pending(FRAMES as u64));
    assert_eq!(ticket.await, Ok(Err(Error::Silent)));
    let mut sent = 0;
    while first.try_recv().is_ok() {
        sent += 1;
    }
    assert_eq!(sent, FRAMES, "the last was not sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_pipeline_closes_though_its_own_stage_waits_for_a_worker_that_takes_nothing() {
    let (shared, [first, _second]) = shared();
    let (sender, runtime) = (shared.clone(), Handle::current());
    let run = |job: Job| Ok(step(job.number()));
    let done = move |result| runtime.block_on(sender.after_local(result));
    let local = LocalStage::spawn(run, |_| true, done).expect("a thread");
    for number in 0..=FRAMES {
        local.submit(step(number as u64)).await.expect("it runs");
    }
    let full = async {
        while first.len() < FRAMES {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, full).await.expect("the stream fills");
    let in_flight = Arc::new(Semaphore::new(1));
    let (stages, _tasks) = (Vec::new(), JoinSet::new());
    let pipeline = Pipeline { shared, local: Some(local), stages, in_flight, _tasks };
    let (closed, end) = oneshot::channel();
    // On a thread that nobody waits for: if it hangs, the test ends all the same.
    std::thread::spawn(move || {
        pipeline.close();
        closed.send(()).ok();
    });
    tokio::time::timeout(LIMIT, end).await.expect("it closes").expect("no panic");
    assert_eq!(first.len(), FRAMES, "the last was not sent");
}
