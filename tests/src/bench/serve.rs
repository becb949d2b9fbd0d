//! Many requests at once: what company costs, what it brings, and that nothing else waits for it.
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use cake_tests::{Collector, Master, Server, master, until};
use serde_json::{Value, json};

use super::cluster::{NAMES, pinned_with};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

const COMPLETIONS: &str = "/v1/completions";
const PROMPT: usize = 64;
const ANSWER: usize = 64;
const STREAMS: usize = 8;
/// Requests at once while others ask for small things.
const CROWD: usize = 16;
const LONG_PROMPT: usize = 4000;
const SHORT_PROMPT: usize = 16;
/// Room for the long prompt.
const CONTEXT: &str = "4352";
/// Of the 8 streams, one more for the short prompt beside the long one.
const PARALLEL: &str = "9";

pub(super) const THROUGHPUT_BAR: &str = "≥ 4 × one stream";
const LEAST_THROUGHPUT: f64 = 4.0;
pub(super) const PIPELINING_BAR: &str = "≥ 0.90";
const LEAST_PIPELINING: f64 = 0.9;
/// Longest that traces may take to come.
const TRACES: Duration = Duration::from_secs(30);
pub(super) const LATENCY_BAR: &str = "≤ 3 steps above idle";
const MOST_STEPS: f64 = 3.0;
pub(super) const SMALL_BAR: &str = "≤ 50 ms at the median";
const MOST_SMALL: Duration = Duration::from_millis(50);

/// A server over two workers of one thread, each on a core of its own; the master is not pinned.
fn with_server<R>(lab: &Lab, work: impl FnOnce(&Server) -> Result<R>) -> Result<R> {
    with_args(lab, &[], work)
}

/// The same with more arguments for workers and server.
fn with_args<R>(lab: &Lab, more: &[String], work: impl FnOnce(&Server) -> Result<R>) -> Result<R> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    let (_home, workers) = pinned_with(lab, more)?;
    let place = [(NAMES[0], 0, CUT), (NAMES[1], CUT, one_b().layers)];
    let pins = master::pins(&place);
    let mut args = vec!["--parallel", PARALLEL, "--context", CONTEXT];
    args.extend(pins.iter().chain(more).map(String::as_str));
    let server = Server::start(&Master::over(&workers), &model, &args);
    ask(&server, &prompt(0, PROMPT), 4)?; // Whatever is done once is done now.
    work(&server)
}

/// Ids that no other prompt begins with, so that none finds what another computed.
fn prompt(number: usize, tokens: usize) -> Vec<u32> {
    let id = |index: usize| ((number + 1) * 104_729 + index * 7919) % 128_000;
    (0..tokens).map(|index| id(index) as u32).collect()
}

fn request(prompt: &[u32], tokens: usize) -> Value {
    json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true })
}

/// Asks for an answer of so many tokens.
fn ask(server: &Server, prompt: &[u32], tokens: usize) -> Result<()> {
    let body = server.post(COMPLETIONS, &request(prompt, tokens)).good();
    let made = body["usage"]["completion_tokens"].as_u64();
    ensure!(made == Some(tokens as u64), "{made:?} tokens of {tokens}");
    Ok(())
}

/// Asks so many at once; generated tokens per second of wall time.
fn together(server: &Server, first: usize, streams: usize) -> Result<f64> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let one = |stream: usize| {
            let prompt = prompt(first + stream, PROMPT);
            scope.spawn(move || ask(server, &prompt, ANSWER))
        };
        let asked: Vec<_> = (0..streams).map(one).collect();
        asked.into_iter().try_for_each(|asked| asked.join().expect("a harness panics aloud"))
    })?;
    Ok((streams * ANSWER) as f64 / started.elapsed().as_secs_f64())
}

/// Eight streams beside one: tokens per second.
pub(super) fn throughput(lab: &Lab, table: &mut Table) -> Result<()> {
    let (alone, eight) = with_server(lab, |server| {
        let (mut alone, mut eight) = (Vec::new(), Vec::new());
        for round in lab.rounds("serve") {
            let first = 1 + round * (STREAMS + 1);
            alone.push(together(server, first, 1)?);
            eight.push(together(server, first + 1, STREAMS)?);
        }
        Ok((median(alone), median(eight)))
    })?;
    let ratio = eight / alone;
    let words = format!("{eight:.1} tok/s, {alone:.1} alone: {ratio:.2} ×");
    let what = "8 streams over 2 pinned workers, bf16, prompts included";
    let met = ratio >= LEAST_THROUGHPUT;
    table.judged(what, Measured::new(ratio, words), THROUGHPUT_BAR, met);
    Ok(())
}

/// Generated tokens per second of eight streams at once, prompts included; a round's answer.
pub(super) fn eight_streams(lab: &Lab) -> Result<f64> {
    with_server(lab, |server| {
        together(server, 1, STREAMS)?; // Brings all of the model into memory.
        together(server, 1 + STREAMS, STREAMS)
    })
}

/// Share of the time of eight streams in which both stages have a step, from the traces that they send.
pub(super) fn pipelining(lab: &Lab, table: &mut Table) -> Result<()> {
    let collector = Collector::start();
    let traced = ["--otlp".to_owned(), collector.url()];
    let busy = with_args(lab, &traced, |server| {
        let mut busy = Vec::new();
        for round in lab.rounds("serve") {
            let from = now();
            together(server, 1 + round * STREAMS, STREAMS)?;
            let to = now();
            let stages = || stages(&collector, from, to);
            // Each token but a prompt's is a step of its sequence at every stage.
            until("the traces", TRACES, || {
                stages().len() == NAMES.len()
                    && stages().values().all(|steps| steps.len() >= STREAMS * ANSWER)
            });
            busy.push(time_of_all(&stages()) / (to - from) as f64);
        }
        Ok(median(busy))
    })?;
    let what = "share of the time of 8 streams in which every stage has a step, running or queued";
    let met = busy >= LEAST_PIPELINING;
    table.judged(what, Measured::new(busy, format!("{busy:.3}")), PIPELINING_BAR, met);
    Ok(())
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

/// Each device's steps between two times, from and to.
fn stages(collector: &Collector, from: u64, to: u64) -> BTreeMap<String, Vec<(u64, u64)>> {
    let mut stages: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for span in collector.spans() {
        if span.name == "stage" && span.time.0 >= from && span.time.1 <= to {
            let device = span.field("device").unwrap_or_default();
            stages.entry(device).or_default().push(span.time);
        }
    }
    stages
}

/// How long all devices have a step at the same time; steps of one device may overlap.
fn time_of_all(stages: &BTreeMap<String, Vec<(u64, u64)>>) -> f64 {
    let mut changes: Vec<(u64, usize, i64)> = Vec::new();
    for (device, steps) in stages.values().enumerate() {
        for &(from, to) in steps {
            changes.extend([(from, device, 1), (to, device, -1)]);
        }
    }
    changes.sort_unstable();
    let mut running = vec![0; stages.len()];
    let (mut all, mut last) = (0, 0);
    for (time, device, change) in changes {
        if running.iter().all(|steps| *steps > 0) {
            all += time - last;
        }
        running[device] += change;
        last = time;
    }
    all as f64
}

/// The time to the first token of a streamed answer.
fn first_token(server: &Server, prompt: &[u32]) -> Result<f64> {
    let mut request = request(prompt, 2);
    request["stream"] = json!(true);
    let started = Instant::now();
    let mut events = server.stream(COMPLETIONS, &request);
    events.next().context("no first token")?;
    let seconds = started.elapsed().as_secs_f64();
    events.for_each(drop);
    Ok(seconds)
}

/// A short prompt while a long one is being read.
pub(super) fn latency(lab: &Lab, table: &mut Table) -> Result<()> {
    let (idle, beside, step) = with_server(lab, |server| {
        let steps = || server.metric("cake_batch_sequences_count").context("no steps");
        let (mut idle, mut beside, mut step) = (Vec::new(), Vec::new(), Vec::new());
        for round in lab.rounds("serve") {
            let first = 1 + round * 4;
            idle.push(first_token(server, &prompt(first, SHORT_PROMPT))?);
            // Alone, to know how long its steps take.
            let (before, started) = (steps()?, Instant::now());
            ask(server, &prompt(first + 1, LONG_PROMPT), 1)?;
            let alone = started.elapsed();
            step.push(alone.as_secs_f64() / (steps()? - before).max(1.0));
            std::thread::scope(|scope| -> Result<()> {
                let long = prompt(first + 2, LONG_PROMPT);
                let long = scope.spawn(move || ask(server, &long, 1));
                std::thread::sleep(alone / 4);
                beside.push(first_token(server, &prompt(first + 3, SHORT_PROMPT))?);
                ensure!(!long.is_finished(), "the long prompt was read already");
                long.join().expect("a harness panics aloud")
            })?;
        }
        Ok((median(idle), median(beside), median(step)))
    })?;
    let above = (beside - idle) / step;
    let words = format!(
        "{above:.2} steps of {:.0} ms: {:.0} ms, idle {:.0} ms",
        step * 1e3,
        beside * 1e3,
        idle * 1e3
    );
    let what = "first token of a short prompt while 4,000 tokens are read";
    table.judged(what, Measured::new(above, words), LATENCY_BAR, above <= MOST_STEPS);
    Ok(())
}

/// Small questions while many requests run.
pub(super) fn small(lab: &Lab, table: &mut Table) -> Result<()> {
    let paths = ["/v1/models", "/health", "/"];
    let times = with_server(lab, |server| {
        std::thread::scope(|scope| {
            let one = |number: usize| {
                let prompt = prompt(1 + number, PROMPT);
                scope.spawn(move || ask(server, &prompt, ANSWER))
            };
            let crowd: Vec<_> = (0..CROWD).map(one).collect();
            let mut times = paths.map(|_| Vec::new());
            while crowd.iter().any(|asked| !asked.is_finished()) {
                for (path, times) in paths.iter().zip(&mut times) {
                    let started = Instant::now();
                    server.text(path);
                    times.push(started.elapsed().as_secs_f64());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            crowd
                .into_iter()
                .try_for_each(|asked| asked.join().expect("a harness panics aloud"))?;
            Ok(times)
        })
    })?;
    for (path, times) in paths.iter().zip(times) {
        let (count, time) = (times.len(), median(times));
        let words = format!("{:.1} ms ({count} times)", time * 1e3);
        let met = count > 10 && time <= MOST_SMALL.as_secs_f64();
        let what = format!("GET {path} while {CROWD} requests run");
        table.judged(&what, Measured::new(time, words), SMALL_BAR, met);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_all_is_where_each_has_a_step() {
        let of = |a: &[(u64, u64)], b: &[(u64, u64)]| {
            time_of_all(&BTreeMap::from([("a".to_owned(), a.to_vec()), ("b".into(), b.to_vec())]))
        };
        assert_eq!(of(&[(0, 10)], &[(5, 15)]), 5.0);
        assert_eq!(of(&[(0, 10), (2, 12), (20, 30)], &[(5, 25)]), 12.0);
        assert_eq!(of(&[(0, 10), (10, 20)], &[(0, 20)]), 20.0);
        assert_eq!(of(&[(0, 10)], &[]), 0.0);
    }
}
