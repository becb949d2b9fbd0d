//! What a service counts and times, for Prometheus (in either of its formats) and for the page.
//!
//! Whoever does a thing records it here, once; names carry their units.

mod http;
mod label;
mod plain;
mod rates;
mod recent;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use crate::scheduler::Load;
pub use http::{Ended, Http};
use label::Label;
use rates::Rates;
pub use recent::Recent;

/// What is counted of a model, and with it all that is counted of the service. All of it may be recorded from any thread.
#[derive(Debug, Default)]
pub struct Metrics {
    counted: Arc<Counted>,
    recent: Mutex<Vec<Recent>>,
    load: Mutex<Load>,
}

/// What is counted of all models together.
#[derive(Debug)]
pub struct Counted {
    registry: Registry,
    started: Instant,
    rates: Mutex<Rates>,
    queue: Histogram,
    first_token: Histogram,
    token: Histogram,
    stage: Family<Label, Histogram, fn() -> Histogram>,
    stage_idle: Family<Label, Counter<f64, std::sync::atomic::AtomicU64>>,
    hop: Histogram,
    batch: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    requests: Family<Label, Counter>,
    /// All of these together.
    answers: AtomicU64,
    sequences: Family<Label, Gauge>,
    steps: Gauge,
    kv_blocks: Family<Label, Gauge>,
    state_slots: Family<Label, Gauge>,
    pushed: Counter,
    reused: Counter,
    recovery: Histogram,
    moves: Histogram,
    copied: Counter,
    covered: Gauge,
    pipelines: Counter,
    worker_failures: Family<Label, Counter>,
    aside: Family<Label, Gauge>,
    /// Of the door for clients.
    pub http: Http,
}

/// A step that came back.
#[derive(Clone, Debug)]
pub struct StepSeen {
    /// Sequences in it.
    pub sequences: usize,
    /// Rows of prompts in it; it generates with all of its sequences if there are none.
    pub prompt_rows: usize,
    /// From its submission to its answer.
    pub elapsed: Duration,
    /// Messages between machines on its way.
    pub hops: usize,
    /// Microseconds that each stage computed.
    pub stage_us: Vec<u32>,
    /// Microseconds that each stage had nothing to compute before it.
    pub idle_us: Vec<u32>,
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Answers that ended, however they did.
    pub answers: u64,
    /// Tokens of prompts, those that need not be computed among them.
    pub prompt_tokens: u64,
    /// Tokens made.
    pub generated_tokens: u64,
}

/// Tokens per second in the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TokenRates {
    /// Of prompts, computed.
    pub prompt_tokens_per_second: f64,
    /// Generated.
    pub generated_tokens_per_second: f64,
}

/// From a millisecond to some two minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 2.0, 18))
}

impl Default for Counted {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cake");
        let metrics = Self {
            registry: Registry::default(),
            started: Instant::now(),
            rates: Mutex::default(),
            queue: seconds(),
            first_token: seconds(),
            token: seconds(),
            stage: Family::new_with_constructor(seconds as fn() -> Histogram),
            stage_idle: Family::default(),
            hop: Histogram::new(exponential_buckets(5e-5, 2.0, 16)),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            requests: Family::default(),
            answers: AtomicU64::new(0),
            sequences: Family::default(),
            steps: Gauge::default(),
            kv_blocks: Family::default(),
            state_slots: Family::default(),
            pushed: Counter::default(),
            reused: Counter::default(),
            recovery: seconds(),
            moves: seconds(),
            copied: Counter::default(),
            covered: Gauge::default(),
            pipelines: Counter::default(),
            worker_failures: Family::default(),
            aside: Family::default(),
            http: Http::default(),
        };
        metrics.register(&mut registry);
        Self { registry, ..metrics }
    }
}

impl std::ops::Deref for Metrics {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.counted
    }
}

impl Metrics {
    /// Those of another model of the same service.
    pub fn beside(&self) -> Self {
        let counted = self.counted.clone();
        Self { counted, recent: Mutex::default(), load: Mutex::default() }
    }

    /// A step came back through stages of these names.
    pub fn step(&self, stages: &[String], seen: &StepSeen) {
        self.batch.observe(seen.sequences as f64);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut computed = 0.0;
        recent.resize(stages.len(), Recent::default());
        for (index, (name, us)) in stages.iter().zip(&seen.stage_us).enumerate() {
            let seconds = f64::from(*us) / 1e6;
            computed += seconds;
            self.stage.get_or_create(&stage(name)).observe(seconds);
            let idle = seen.idle_us.get(index).map(|us| f64::from(*us) / 1e6);
            recent[index].step(seconds, idle, seen.sequences, seen.prompt_rows);
        }
        for (name, us) in stages.iter().zip(&seen.idle_us) {
            self.stage_idle.get_or_create(&stage(name)).inc_by(f64::from(*us) / 1e6);
        }
        if seen.hops > 0 {
            let between = (seen.elapsed.as_secs_f64() - computed).max(0.0);
            self.hop.observe(between / seen.hops as f64);
        }
    }

    /// How busy the model is now: what is shown is the sum over all.
    pub fn occupied(&self, now: &Load) {
        let before = {
            let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *load, *now)
        };
        let by = |now: usize, before: usize| now as i64 - before as i64;
        let add = |family: &Family<Label, Gauge>, state: &str, change: i64| {
            family.get_or_create(&[("state", state.to_owned())]).inc_by(change);
        };
        add(&self.sequences, "running", by(now.running, before.running));
        add(&self.sequences, "waiting", by(now.waiting, before.waiting));
        for (family, now, before) in [
            (&self.kv_blocks, now.kv_blocks, before.kv_blocks),
            (&self.state_slots, now.state_slots, before.state_slots),
        ] {
            add(family, "held", by(now.held, before.held));
            add(family, "idle", by(now.idle, before.idle));
            add(family, "free", by(now.free, before.free));
        }
        self.steps.inc_by(by(now.steps, before.steps));
    }

    /// What a stage did lately.
    pub fn recent(&self, stage: usize) -> Recent {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(stage).copied().unwrap_or_default()
    }

    /// Other stages are there: what those before did says nothing of them.
    pub fn other_stages(&self) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.occupied(&Load::default());
    }
}

impl Counted {
    fn register(&self, to: &mut Registry) {
        let s = || Unit::Seconds;
        let t = || Unit::Other("tokens".to_owned());
        to.register_with_unit("queue", "Wait of a request for its turn", s(), self.queue.clone());
        let help = "From a request to its first token";
        to.register_with_unit("time_to_first_token", help, s(), self.first_token.clone());
        let help = "From the loss of a stage to a pipeline in its place";
        to.register_with_unit("recovery", help, s(), self.recovery.clone());
        let help = "Pause for a planned move of layers";
        to.register_with_unit("move", help, s(), self.moves.clone());
        let help = "From one token of an answer to the next";
        to.register_with_unit("time_per_token", help, s(), self.token.clone());
        let help = "Arithmetic of a step in each stage";
        to.register_with_unit("stage_step", help, s(), self.stage.clone());
        let help = "Time in which a stage had nothing to compute";
        to.register_with_unit("stage_idle", help, s(), self.stage_idle.clone());
        let help =
            "Time of a step outside of all stages, for each hop; waits between stages included";
        to.register_with_unit("hop", help, s(), self.hop.clone());
        let help = "Sequences in a step";
        to.register("batch_sequences", help, self.batch.clone());
        to.register_with_unit("prompt", "Prompt tokens taken", t(), self.prompt_tokens.clone());
        let help = "Prompt tokens that need not be computed";
        to.register_with_unit("prompt_cached", help, t(), self.cached_tokens.clone());
        to.register_with_unit("generated", "Tokens made", t(), self.generated_tokens.clone());
        to.register("requests", "Answers that ended, by how", self.requests.clone());
        to.register("sequences", "Sequences that run or wait", self.sequences.clone());
        to.register("steps_in_flight", "Steps on their way", self.steps.clone());
        to.register("kv_blocks", "KV blocks of every stage, by use", self.kv_blocks.clone());
        let help = "Slots of recurrent state of every stage, by use";
        to.register("state_slots", help, self.state_slots.clone());
        let help = "Blob bytes sent to workers";
        to.register_with_unit("pushed", help, Unit::Bytes, self.pushed.clone());
        let help = "Blob bytes sent to workers as copies for a loss of another one";
        to.register_with_unit("copied", help, Unit::Bytes, self.copied.clone());
        let help = "Workers whose loss would push nothing";
        to.register("covered_workers", help, self.covered.clone());
        let help = "Pipelines that were begun, each with all its stages";
        to.register("pipelines", help, self.pipelines.clone());
        let help =
            "Pipelines that ended because of a worker or of the way between two, by what happened";
        to.register("worker_failures", help, self.worker_failures.clone());
        let help = "Workers that get no layers for now because of what they did";
        to.register("workers_set_aside", help, self.aside.clone());
        let help = "Blob bytes that workers had already";
        to.register_with_unit("push_reused", help, Unit::Bytes, self.reused.clone());
        self.http.register(to);
    }

    /// A request left the queue, with so many prompt tokens, of which some were there already.
    pub fn begun(&self, waited: Duration, prompt_tokens: usize, cached_tokens: usize) {
        self.queue.observe(waited.as_secs_f64());
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        self.cached_tokens.inc_by(cached_tokens as u64);
    }

    /// A step began to compute so many rows of prompts.
    pub fn read(&self, prompt_rows: usize) {
        self.rates().add(self.started.elapsed(), prompt_rows as u64, 0);
    }

    /// An answer has its first token, so long after it was asked for.
    pub fn first_token(&self, since_request: Duration) {
        self.first_token.observe(since_request.as_secs_f64());
        self.made_a_token();
    }

    /// An answer has one more token, so long after the one before.
    pub fn next_token(&self, since_last: Duration) {
        self.token.observe(since_last.as_secs_f64());
        self.made_a_token();
    }

    fn made_a_token(&self) {
        self.generated_tokens.inc();
        self.rates().add(self.started.elapsed(), 0, 1);
    }

    /// An answer ended, in one word.
    pub fn ended(&self, how: &str) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.requests.get_or_create(&[("outcome", how.to_owned())]).inc();
    }

    /// Blobs were pushed.
    pub fn pushed(&self, pushed_bytes: u64, reused_bytes: u64) {
        self.pushed.inc_by(pushed_bytes);
        self.reused.inc_by(reused_bytes);
    }

    /// Layers moved as planned, so long was nothing computed.
    pub fn moved(&self, seconds: f64) {
        self.moves.observe(seconds);
    }

    /// So many bytes were sent as copies, which now cover a loss of so many workers.
    pub fn copied(&self, bytes: u64, covered: usize) {
        self.copied.inc_by(bytes);
        self.covered.set(i64::try_from(covered).unwrap_or(i64::MAX));
    }

    /// A pipeline is begun.
    pub fn pipeline(&self) {
        self.pipelines.inc();
    }

    /// A pipeline ended because of a worker or of the way between two, in one word.
    pub fn failed_worker(&self, how: &str) {
        self.worker_failures.get_or_create(&[("kind", how.to_owned())]).inc();
    }

    /// So many workers get no layers for a short while, and so many for long.
    pub fn set_aside(&self, paused: usize, quarantined: usize) {
        for (state, count) in [("paused", paused), ("quarantine", quarantined)] {
            let gauge = self.aside.get_or_create(&[("state", state.to_owned())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A pipeline has taken the place of one that was lost.
    pub fn recovered(&self, seconds: f64) {
        self.recovery.observe(seconds);
    }

    /// What was done since the start, and for how long that is.
    pub fn totals(&self) -> (Totals, Duration) {
        let totals = Totals {
            answers: self.answers.load(Ordering::Relaxed),
            prompt_tokens: self.prompt_tokens.get(),
            generated_tokens: self.generated_tokens.get(),
        };
        (totals, self.started.elapsed())
    }

    /// Tokens per second in the last seconds.
    pub fn token_rates(&self) -> TokenRates {
        let (prompt, generated) = self.rates().per_second(self.started.elapsed());
        TokenRates { prompt_tokens_per_second: prompt, generated_tokens_per_second: generated }
    }

    /// Everything as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes whatever is written");
        text
    }

    /// Everything in Prometheus' own text format, version 0.0.4.
    pub fn plain_text(&self) -> String {
        plain::plain(&self.text())
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        // Each change leaves it whole.
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stage(name: &str) -> Label {
    [("stage", name.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Usage;

    #[test]
    fn what_is_recorded_is_in_the_text_with_its_unit() {
        let metrics = Metrics::default();
        metrics.begun(Duration::from_millis(20), 100, 64);
        metrics.first_token(Duration::from_millis(300));
        metrics.next_token(Duration::from_millis(50));
        metrics.ended("stop");
        let kv_blocks = Usage { held: 7, ..Usage::default() };
        let state_slots = Usage { idle: 3, ..Usage::default() };
        metrics.occupied(&Load { running: 2, kv_blocks, state_slots, ..Load::default() });
        metrics.pushed(1000, 24);
        let seen = StepSeen {
            sequences: 3,
            prompt_rows: 0,
            elapsed: Duration::from_millis(10),
            hops: 2,
            stage_us: vec![4000, 2000],
            idle_us: vec![500, 1_500_000],
        };
        metrics.step(&["a".to_owned(), "b\"c".to_owned()], &seen);
        let text = metrics.text();
        for line in [
            "cake_queue_seconds_count 1",
            "cake_queue_seconds_sum 0.02",
            "cake_prompt_tokens_total 100",
            "cake_prompt_cached_tokens_total 64",
            "cake_generated_tokens_total 2",
            "cake_time_to_first_token_seconds_count 1",
            "cake_time_per_token_seconds_sum 0.05",
            "cake_requests_total{outcome=\"stop\"} 1",
            "cake_sequences{state=\"running\"} 2",
            "cake_kv_blocks{state=\"held\"} 7",
            "cake_state_slots{state=\"idle\"} 3",
            "cake_pushed_bytes_total 1000",
            "cake_push_reused_bytes_total 24",
            "cake_batch_sequences_sum 3.0",
            "cake_stage_step_seconds_sum{stage=\"a\"} 0.004",
            "cake_stage_idle_seconds_total{stage=\"b\\\"c\"} 1.5",
            "cake_hop_seconds_sum 0.002",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let (text, board) = (metrics.text(), include_str!("../../../deploy/grafana.json"));
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let names = board.split(|c| !is_name(c)).filter(|word| word.starts_with("cake_"));
        for name in names {
            let counted = |line: &str| {
                line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "))
            };
            assert!(text.lines().any(counted), "the dashboard asks for {name}");
        }
        let expected = Totals { answers: 1, prompt_tokens: 100, generated_tokens: 2 };
        assert_eq!(metrics.totals().0, expected);
        let recent = metrics.recent(1);
        assert_eq!((recent.step_seconds, recent.decode_seconds), (Some(0.002), Some(0.002)));
        assert_eq!(metrics.recent(2), Recent::default());
        metrics.other_stages();
        assert_eq!(metrics.recent(1), Recent::default());
    }

    #[test]
    fn models_are_counted_together_and_their_stages_apart() {
        let one = Metrics::default();
        let other = one.beside();
        one.occupied(&Load { running: 2, ..Load::default() });
        other.occupied(&Load { running: 3, ..Load::default() });
        one.occupied(&Load { running: 1, ..Load::default() });
        let running = |line: &str| one.text().lines().any(|found| found == line);
        assert!(running("cake_sequences{state=\"running\"} 4"), "{}", one.text());
        let seen = StepSeen {
            sequences: 1,
            prompt_rows: 0,
            elapsed: Duration::from_millis(1),
            hops: 0,
            stage_us: vec![1000],
            idle_us: vec![0],
        };
        other.step(&["a".to_owned()], &seen);
        assert!(other.recent(0) != Recent::default() && one.recent(0) == Recent::default());
        drop(other);
        assert!(running("cake_sequences{state=\"running\"} 1"), "{}", one.text());
    }
}
