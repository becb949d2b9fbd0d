//! How long it takes until a worker's death is noticed, and until answers go on.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_tests::streams::{STREAMS, count, together};
use cake_tests::{Master, Server, TestWorker, WorkerOptions, budget_for, master};

use super::files;
use super::lab::Lab;
use super::models::{ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

/// What is asked of it.
pub(super) const BAR: &str = "≤ 1.3; noticed ≤ 1 s";
const MOST: f64 = 1.3;
const MOST_SILENCE: f64 = 1.0;
const NAMES: [&str; 3] = ["a", "b", "c"];
const PLACE: [(&str, usize, usize); 3] = [("a", 0, 6), ("b", 6, 11), ("c", 11, 16)];
const ARGS: &[&str] = &["--context", "512", "--parallel", "8", "--local-memory", "0"];
const TOKENS: usize = 60;
/// Tokens of all streams together before one is killed.
const BEFORE: f64 = 160.0;
const POLL: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(300);

/// Kills the second of three workers, each with room for half of the layers, while eight streams run; the
/// time from when the master knows until every stream has another token ÷ (bytes pushed ÷ the rate of the first
/// push + rows to compute again ÷ the rate at which the prompts were read).
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    let budget = budget_for(&model, 8, ARGS);
    let (mut ratios, mut silences, mut words) = (Vec::new(), Vec::new(), String::new());
    for _ in lab.rounds("recovery") {
        let home = lab.scratch()?;
        let start = |name: &&str| {
            let directory = Some(home.path().join(name));
            std::fs::create_dir(home.path().join(name))?;
            let options = WorkerOptions { memory: budget, directory, ..WorkerOptions::default() };
            Ok(TestWorker::start(name, options))
        };
        let mut workers = NAMES.iter().map(start).collect::<Result<Vec<_>>>()?;
        let master = Master::over(&workers).deadline(LIMIT);
        let pushed = master.push(&model, &PLACE);
        let each = pushed["pushed"].as_array().context("nothing about the push")?;
        let bytes: f64 = each.iter().filter_map(|one| one["pushed_bytes"].as_f64()).sum();
        let link = bytes / pushed["push_seconds"].as_f64().context("no push_seconds")?;
        let pins = master::pins(&PLACE);
        let args: Vec<&str> = pins.iter().map(String::as_str).chain(ARGS.iter().copied()).collect();
        let server = Server::start(&master, &model, &args);
        let made = || count(&server, "cake_generated_tokens_total");
        let mut times = None;
        together(&server, TOKENS, || {
            let asked = Instant::now();
            wait(|| made() >= STREAMS as f64);
            let read = asked.elapsed().as_secs_f64();
            let prompts = count(&server, "cake_prompt_tokens_total");
            wait(|| made() >= BEFORE);
            let before = count(&server, "cake_pushed_bytes_total");
            workers[1].kill();
            let killed = Instant::now();
            wait(|| server.get("/ready").status != 200);
            let silence = killed.elapsed().as_secs_f64();
            let at_loss = made();
            wait(|| made() >= at_loss + STREAMS as f64);
            let gone = killed.elapsed().as_secs_f64() - silence;
            let missing = count(&server, "cake_pushed_bytes_total") - before;
            times = Some((silence, gone, missing, prompts, read, prompts + at_loss));
        });
        let (silence, gone, missing, prompts, read, rows) = times.context("nothing happened")?;
        ensure!(missing > 0.0, "nothing was pushed");
        let expected = missing / link + rows / (prompts / read);
        ratios.push(gone / expected);
        silences.push(silence);
        words = format!(
            "{gone:.2} s for {:.0} MiB at {:.0} MiB/s and {rows:.0} rows at {:.0} rows/s",
            missing / 1048576.0,
            link / 1048576.0,
            prompts / read,
        );
        eprintln!("noticed after {silence:.2} s; {words}: {:.2}", gone / expected);
    }
    let (ratio, silence) = (median(ratios), median(silences));
    let words = format!("{ratio:.2}; noticed after {silence:.2} s; the last: {words}");
    let met = ratio <= MOST && silence <= MOST_SILENCE;
    table.judged(
        "time to go on after a loss ÷ push and replay",
        Measured::new(ratio, words),
        BAR,
        met,
    );
    Ok(())
}

fn wait(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LIMIT, "it takes too long");
        std::thread::sleep(POLL);
    }
}
