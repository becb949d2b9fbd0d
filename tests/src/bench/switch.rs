//! How long a request waits for a model that takes the place of another, where the workers hold both.
use std::time::Instant;

use anyhow::{Result, ensure};
use cake_checkpoint::Dtype;
use cake_tests::streams::{COMPLETIONS, count, prompt};
use cake_tests::{Master, ModelShape, Server, TestWorker, master};
use serde_json::json;

use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≤ 2 s; 0 B pushed";
const MOST_SECONDS: f64 = 2.0;
/// The other model: of the same shape in as many bytes, none of which the first one's blobs have.
const OTHER: &str = "llama-1b-f16";
const NAMES: [&str; 3] = ["a", "b", "c"];
const PLACE: [(&str, usize, usize); 3] = [("a", 0, 6), ("b", 6, 11), ("c", 11, 16)];
const ARGS: &[&str] = &["--context", "512", "--local-memory", "0"];

/// Has two models loaded over three workers, one in the place of the other; from the second time on, the time from the
/// question to the one token of its answer.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let other = ModelShape { dtype: Dtype::F16, ..one_b() };
    let models = [lab.model(ONE_B, &one_b())?, lab.model(OTHER, &other)?];
    for model in &models {
        files::warm(model)?;
    }
    let workers = TestWorker::several(&NAMES);
    let pins = master::pins(&PLACE);
    let args: Vec<&str> = pins.iter().map(String::as_str).chain(ARGS.iter().copied()).collect();
    let [one, two] = &models;
    let server = Server::of_several(&Master::over(&workers), &[one, two], &args);
    let ask = |name: &str| {
        let asked = Instant::now();
        let request = json!({ "model": name, "prompt": prompt(0, 8), "max_tokens": 1 });
        server.post(COMPLETIONS, &request).good();
        asked.elapsed().as_secs_f64()
    };
    let pushed = || count(&server, "cake_pushed_bytes_total");
    let first = [ask(ONE_B), ask(OTHER)];
    let both = pushed();
    ensure!(both > 0.0, "nothing was pushed");
    let mut times = Vec::new();
    for _ in lab.rounds("switch") {
        times.extend([ask(ONE_B), ask(OTHER)]);
    }
    let again = pushed() - both;
    let (seconds, [a, b]) = (median(times), first);
    let words = format!("{seconds:.2} s; {again:.0} B pushed; at first {a:.1} s and {b:.1} s");
    let met = seconds <= MOST_SECONDS && again == 0.0;
    table.judged("time to switch between two 1B models", Measured::new(seconds, words), BAR, met);
    Ok(())
}
