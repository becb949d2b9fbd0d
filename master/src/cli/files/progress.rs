//! How far a job is: counted by its threads, drawn by a task.
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cake_checkpoint::units::{format_bytes, format_rate};
use cake_transform::Observer;
use indicatif::{ProgressBar, ProgressStyle};

use super::{duration, out};

const REDRAW: Duration = Duration::from_millis(100);
/// Plain lines are for logs: few of them.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What happens to a source before anything is written.
const CHECKED: &str = "compared with the checksum";

/// What a job's threads say, and what they are told.
#[derive(Debug, Default)]
pub(in crate::cli) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    /// What was there when it began.
    before: AtomicU64,
    /// When it began.
    began: Mutex<Option<Instant>>,
    /// Whether the source is compared with its checksum, and nothing is written yet.
    checking: AtomicBool,
    cancelled: AtomicBool,
    ended: AtomicBool,
}

impl Progress {
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Begins to count anew if `anew`, and counts.
    fn count(&self, done: u64, total: u64, anew: bool) {
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        if began.is_none() || anew {
            *began = Some(Instant::now());
            self.before.store(done, Ordering::Relaxed);
            self.done.store(done, Ordering::Relaxed);
        }
        self.total.store(total, Ordering::Relaxed);
        self.done.fetch_max(done, Ordering::Relaxed); // Threads report in any order.
    }

    /// Rate and time left, once bytes move.
    fn message(&self) -> String {
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (done, total, before) = (load(&self.done), load(&self.total), load(&self.before));
        let moved = done.saturating_sub(before) as f64;
        if moved == 0.0 || seconds < 0.5 {
            return String::new();
        }
        let rate = moved / seconds;
        let left = total.saturating_sub(done) as f64 / rate;
        format!("{}, {} left", format_rate(rate), duration(left))
    }
}

impl Observer for Progress {
    fn progress(&self, done: u64, total: u64) {
        self.count(done, total, self.checking.swap(false, Ordering::Relaxed));
    }

    fn checked(&self, done: u64, total: u64) {
        self.checking.store(true, Ordering::Relaxed);
        self.count(done, total, false);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Draws on standard error until it has ended, with `what` happens to the bytes: a bar on a terminal, a line now and then elsewhere.
pub(super) async fn draw(progress: Arc<Progress>, what: &'static str) {
    let terminal = std::io::stderr().is_terminal();
    let style = ProgressStyle::with_template(
        "  [{bar:40}] {binary_bytes:>10} of {binary_total_bytes} {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
    .progress_chars("=> ");
    let bar = if terminal { ProgressBar::new(0).with_style(style) } else { ProgressBar::hidden() };
    let mut said = Instant::now();
    while !progress.has_ended() {
        tokio::time::sleep(REDRAW).await;
        let message = progress.message();
        let done = progress.done.load(Ordering::Relaxed);
        let total = progress.total.load(Ordering::Relaxed);
        out::patiently(|| {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(message.clone());
        });
        if !terminal && total > 0 && said.elapsed() >= LINE_EVERY {
            said = Instant::now();
            let (done, total) = (format_bytes(done), format_bytes(total));
            let message = if message.is_empty() { message } else { format!(" ({message})") };
            let what = if progress.checking.load(Ordering::Relaxed) { CHECKED } else { what };
            out::note(format_args!("{done} of {total} {what}{message}"));
        }
    }
    out::patiently(|| bar.abandon());
}
