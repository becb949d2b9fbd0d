//! What people see while they wait: progress bars on a terminal, plain lines elsewhere.
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cake_checkpoint::units::{format_bytes, format_rate};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::distributor::Progress;

const REDRAW: Duration = Duration::from_millis(100);
/// Plain lines are for logs: few of them.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Draws a push until it is told to finish.
#[derive(Debug)]
pub(super) struct PushDrawing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl PushDrawing {
    /// Starts drawing on standard error; nothing at all if `quiet`.
    pub(super) fn start(progress: &Arc<Progress>, quiet: bool) -> Self {
        let (stop, stopped) = oneshot::channel();
        let progress = progress.clone();
        let task = tokio::spawn(async move {
            if quiet {
                stopped.await.ok();
            } else if std::io::stderr().is_terminal() {
                bars(&progress, stopped).await;
            } else {
                lines(&progress, stopped).await;
            }
        });
        Self { stop, task }
    }

    /// Draws the last state and waits for it to be on the screen.
    pub(super) async fn finish(self) {
        self.stop.send(()).ok();
        self.task.await.ok();
    }
}

/// One bar for each worker: bytes, rate, time left.
async fn bars(progress: &Progress, mut stopped: oneshot::Receiver<()>) {
    let all = MultiProgress::new();
    let style = ProgressStyle::with_template(
        "  {prefix:<12} [{bar:28}] {binary_bytes:>10} of {binary_total_bytes} {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
    .progress_chars("=> ");
    let started = Instant::now();
    let bars: Vec<ProgressBar> = progress
        .workers
        .iter()
        .map(|worker| {
            let bar = all.add(ProgressBar::new(worker.total_bytes).with_style(style.clone()));
            bar.set_prefix(worker.name.clone());
            bar
        })
        .collect();
    loop {
        let done = tokio::time::timeout(REDRAW, &mut stopped).await.is_ok();
        let seconds = started.elapsed().as_secs_f64();
        for (bar, worker) in bars.iter().zip(&progress.workers) {
            let (sent, reused) = (worker.sent(), worker.reused());
            bar.set_position((sent + reused).min(worker.total_bytes));
            let rate = sent as f64 / seconds;
            bar.set_message(match (worker.finished(), sent, reused) {
                (true, 0, _) => "already there".to_owned(),
                (true, ..) => format!("done, {}", format_rate(rate)),
                (false, 0, 0) => "reading".to_owned(),
                (false, 0, _) => "checking what is there".to_owned(),
                (false, ..) => {
                    let left = worker.total_bytes.saturating_sub(sent + reused) as f64 / rate;
                    format!("{}, {left:.0} s left", format_rate(rate))
                }
            });
        }
        if done {
            bars.iter().for_each(ProgressBar::abandon);
            return;
        }
    }
}

/// A line per worker now and then, and one at the end.
async fn lines(progress: &Progress, mut stopped: oneshot::Receiver<()>) {
    let started = Instant::now();
    loop {
        let done = tokio::time::timeout(LINE_EVERY, &mut stopped).await.is_ok();
        let seconds = started.elapsed().as_secs_f64();
        for worker in &progress.workers {
            let (sent, reused) = (worker.sent(), worker.reused());
            if done && sent == 0 {
                continue; // The summary says that nothing had to be sent.
            }
            eprintln!(
                "{}: {} of {} there, {} sent ({})",
                worker.name,
                format_bytes(sent + reused),
                format_bytes(worker.total_bytes),
                format_bytes(sent),
                format_rate(sent as f64 / seconds),
            );
        }
        if done {
            return;
        }
    }
}
