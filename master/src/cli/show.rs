//! What people see while they wait: progress bars on a terminal, plain lines elsewhere.
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cake_checkpoint::units::{format_bytes, format_rate};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::oneshot;

use super::out;
use super::report::duration;
use crate::distributor::{Progress, WorkerProgress};

const REDRAW: Duration = Duration::from_millis(100);
/// Plain lines are for logs: few of them.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Draws a push on standard error until it has ended, on a task of its own: whoever reads slowly holds up no bytes.
pub(super) async fn draw(progress: Arc<Progress>, ended: oneshot::Receiver<()>) {
    let drawing = tokio::spawn(async move {
        match std::io::stderr().is_terminal() {
            true => bars(&progress, ended).await,
            false => lines(&progress, ended).await,
        }
    });
    drawing.await.ok();
}

/// One bar for each worker: bytes, rate, time left.
async fn bars(progress: &Progress, mut ended: oneshot::Receiver<()>) {
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
        let done = tokio::time::timeout(REDRAW, &mut ended).await.is_ok();
        let seconds = started.elapsed().as_secs_f64();
        out::patiently(|| {
            for (bar, worker) in bars.iter().zip(&progress.workers) {
                let moment = Moment::of(worker, seconds);
                bar.set_position(moment.there().min(moment.total_bytes));
                bar.set_message(moment.message());
            }
        });
        if done {
            out::patiently(|| bars.iter().for_each(ProgressBar::abandon));
            return;
        }
    }
}

/// A line per worker now and then, and one at the end.
async fn lines(progress: &Progress, mut ended: oneshot::Receiver<()>) {
    let started = Instant::now();
    loop {
        let done = tokio::time::timeout(LINE_EVERY, &mut ended).await.is_ok();
        for worker in &progress.workers {
            let moment = Moment::of(worker, started.elapsed().as_secs_f64());
            if done && moment.sent == 0 {
                continue; // The summary says that nothing had to be sent.
            }
            out::note(moment.line(&worker.name));
        }
        if done {
            return;
        }
    }
}

/// How far the push to one worker is.
#[derive(Clone, Copy, Debug)]
struct Moment {
    total_bytes: u64,
    sent: u64,
    reused: u64,
    finished: bool,
    seconds: f64,
}

impl Moment {
    fn of(worker: &WorkerProgress, seconds: f64) -> Self {
        Self {
            total_bytes: worker.total_bytes,
            sent: worker.sent(),
            reused: worker.reused(),
            finished: worker.finished(),
            seconds,
        }
    }

    fn there(&self) -> u64 {
        self.sent.saturating_add(self.reused)
    }

    /// What is going on, with rate and time left once bytes move.
    fn message(&self) -> String {
        let rate = self.sent as f64 / self.seconds.max(1e-9);
        match (self.finished, self.sent, self.reused) {
            (true, 0, _) => "already there".to_owned(),
            (true, ..) => format!("done, {}", format_rate(rate)),
            (false, 0, 0) => "reading".to_owned(),
            (false, 0, _) => "checking what is there".to_owned(),
            (false, ..) => {
                let left = self.total_bytes.saturating_sub(self.there()) as f64 / rate;
                format!("{}, {} left", format_rate(rate), duration(left))
            }
        }
    }

    fn line(&self, worker: &str) -> String {
        format!(
            "{worker}: {} of {} there, {} sent ({})",
            format_bytes(self.there()),
            format_bytes(self.total_bytes),
            format_bytes(self.sent),
            self.message(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_line_has_bytes_rate_and_time_left() {
        let (total_bytes, seconds) = (100 * MIB, 5.0);
        let moment =
            Moment { total_bytes, sent: 40 * MIB, reused: 20 * MIB, finished: false, seconds };
        assert_eq!(
            moment.line("phone"),
            "phone: 60 MiB of 100 MiB there, 40 MiB sent (8 MiB/s, 5.0 s left)"
        );
        let done = Moment { sent: 80 * MIB, finished: true, ..moment };
        assert_eq!(done.message(), "done, 16 MiB/s");
        assert_eq!(Moment { sent: 0, ..done }.message(), "already there");
        assert_eq!(Moment { sent: 0, reused: 0, seconds: 0.0, ..moment }.message(), "reading");
    }
}
