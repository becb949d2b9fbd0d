//! A model on its way from the Hub: planned and fetched on threads that may block, drawn, and stopped by Ctrl-C.
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cake_checkpoint::hub_caches;
use cake_checkpoint::units::{format_bytes, format_rate};
use cake_hub::{Choice, Hub, Observer, Options, Plan, Pulled, Wanted};
use indicatif::{ProgressBar, ProgressStyle};

use super::ctrl_c::Interrupts;
use super::report::duration;
use super::{Error, out};

const REDRAW: Duration = Duration::from_millis(100);
/// Plain lines are for logs: few of them.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How long whoever fetches may take to stop. A request that hangs longer is left to the program's end.
const LAST: Duration = Duration::from_secs(2);

/// A model that is planned to be fetched.
pub(super) struct Pulling {
    hub: Arc<Hub>,
    plan: Arc<Plan>,
    ticker: Arc<Ticker>,
}

/// How far it is, and whether it is to stop.
#[derive(Debug, Default)]
struct Ticker {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl Observer for Ticker {
    fn progress(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.fetch_max(done, Ordering::Relaxed); // Told by several threads, in any order.
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Pulling {
    /// Asks the hub what there is of a model.
    pub(super) async fn plan(
        wanted: Wanted,
        choice: Choice,
        interrupts: &mut Interrupts,
    ) -> Result<Pulling, Error> {
        let cache = hub_caches().into_iter().next().ok_or(cake_hub::Error::NoCache)?;
        let hub = Arc::new(Hub::new(Options::from_environment())?);
        let ticker = Arc::new(Ticker::default());
        let (asked, seen) = (hub.clone(), ticker.clone());
        let planning = move || cake_hub::plan(&asked, &wanted, &choice, &cache, &*seen);
        let plan =
            until_interrupted(planning, &ticker, interrupts).await.map_err(
                |error| match error {
                    // Nothing was begun that could go on.
                    Error::Hub(cake_hub::Error::Stopped { .. }) => Error::Interrupted,
                    error => error,
                },
            )?;
        Ok(Pulling { hub, plan: Arc::new(plan), ticker })
    }

    /// What is to be fetched.
    pub(super) fn what(&self) -> &Plan {
        &self.plan
    }

    /// Fetches it; `draw` says whether anybody looks.
    pub(super) async fn run(
        self,
        connections: usize,
        draw: bool,
        interrupts: &mut Interrupts,
    ) -> Result<Pulled, Error> {
        let Pulling { hub, plan, ticker } = self;
        let seen = ticker.clone();
        let drawing = draw.then(|| tokio::spawn(show(ticker.clone())));
        let pulling = move || cake_hub::pull(&hub, &plan, connections, &*seen);
        let pulled = until_interrupted(pulling, &ticker, interrupts).await;
        if let Some(drawing) = drawing {
            drawing.abort();
            drawing.await.ok();
        }
        pulled
    }
}

/// Does what blocks until it is done, or until Ctrl-C and a moment more.
async fn until_interrupted<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, cake_hub::Error> + Send + 'static,
    ticker: &Ticker,
    interrupts: &mut Interrupts,
) -> Result<T, Error> {
    let mut working = tokio::task::spawn_blocking(work);
    let done = tokio::select! {
        done = &mut working => done,
        () = interrupts.next() => {
            ticker.cancelled.store(true, Ordering::Relaxed);
            match tokio::time::timeout(LAST, working).await {
                Ok(done) => done,
                Err(_) => return Err(Error::Interrupted),
            }
        }
    };
    let panicked = |panic: tokio::task::JoinError| std::panic::resume_unwind(panic.into_panic());
    Ok(done.unwrap_or_else(panicked)?)
}

/// Draws on standard error for as long as it is let.
async fn show(ticker: Arc<Ticker>) {
    let is_terminal = std::io::stderr().is_terminal();
    let bar = is_terminal.then(bar);
    let started = Instant::now();
    let mut first = None;
    loop {
        tokio::time::sleep(if is_terminal { REDRAW } else { LINE_EVERY }).await;
        let total = ticker.total.load(Ordering::Relaxed);
        let done = ticker.done.load(Ordering::Relaxed);
        if total == 0 {
            continue;
        }
        let first = *first.get_or_insert(done);
        let words = words(done, total, done - first, started.elapsed().as_secs_f64());
        out::patiently(|| match &bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(words);
            }
            None => {
                out::note(format_args!(
                    "{} of {} there ({words})",
                    format_bytes(done),
                    format_bytes(total)
                ));
            }
        });
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "  [{bar:28}] {binary_bytes:>10} of {binary_total_bytes} {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
    .progress_chars("=> ");
    ProgressBar::new(0).with_style(style)
}

/// Rate and time left.
fn words(done: u64, total: u64, fetched: u64, seconds: f64) -> String {
    let rate = fetched as f64 / seconds.max(1e-9);
    match (done >= total, fetched) {
        (true, _) => "checking".to_owned(),
        (false, 0) => "waiting".to_owned(),
        (false, _) => {
            let left = total.saturating_sub(done) as f64 / rate;
            format!("{}, {} left", format_rate(rate), duration(left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_what_came_now() {
        let mib = 1 << 20;
        assert_eq!(words(60 * mib, 100 * mib, 40 * mib, 5.0), "8 MiB/s, 5.0 s left");
        assert_eq!(words(60 * mib, 100 * mib, 0, 5.0), "waiting");
        assert_eq!(words(100 * mib, 100 * mib, 40 * mib, 5.0), "checking");
    }
}
