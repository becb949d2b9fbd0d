//! How long a newcomer waits for the first word of the demo.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_tests::{Master, Running};

use super::lab::Lab;
use super::table::{Measured, Table};

const ROUNDS: usize = 3;
const SECONDS: f64 = 5.0;
const LOOK_EVERY: Duration = Duration::from_millis(2);
const DEADLINE: Duration = Duration::from_secs(60);

/// From the start of the process to the story's first text on standard output.
pub(crate) fn first_answer(lab: &Lab, table: &mut Table) -> Result<()> {
    let mut slowest = 0f64;
    let mut words = Vec::new();
    for _ in 0..ROUNDS {
        let (master, home) = (Master::alone(), lab.scratch()?);
        let mut command = master.bare(&["demo"]);
        command.env("TMPDIR", home.path());
        let started = Instant::now();
        let demo = Running::start(&mut command);
        while !answers(&demo.stdout()) {
            ensure!(started.elapsed() < DEADLINE, "no answer yet: {}", demo.stderr());
            std::thread::sleep(LOOK_EVERY);
        }
        let seconds = started.elapsed().as_secs_f64();
        slowest = slowest.max(seconds);
        let demo = demo.finish(DEADLINE);
        ensure!(demo.status.success(), "{}", demo.stderr.trim());
        words.push(format!("{seconds:.2} s (it says {})", own_figure(&demo.stdout)?));
    }
    table.at_most(
        "first answer: start of `demo` to the story's first text, slowest of three",
        Measured::new(slowest, words.join(", ")),
        SECONDS,
        "≤ 5 s",
    );
    Ok(())
}

/// Whether there is any text after the question.
fn answers(stdout: &str) -> bool {
    let question = stdout.split_once("\n> ").and_then(|(_, rest)| rest.split_once('\n'));
    question.is_some_and(|(_, answer)| !answer.trim().is_empty())
}

/// The demo's own words about it.
fn own_figure(stdout: &str) -> Result<&str> {
    let said =
        stdout.split_once("the first came ").and_then(|(_, rest)| rest.split_once(" after "));
    Ok(said.context("the demo did not say when the first token came")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_text_after_the_question() {
        let before = "started worker a pid 7\n\n> Tell me?\n\n";
        assert!(!answers(before) && !answers("started worker"));
        assert!(answers(&format!("{before}Once")));
        let said = "3 tokens at 9 tok/s; the first came 0.53 s after the start of this demo\n";
        assert_eq!(own_figure(said).unwrap(), "0.53 s");
    }
}
