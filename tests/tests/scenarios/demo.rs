//! The demo: three processes, one story, nothing left behind.
use std::process::Command;
use std::time::Duration;

use cake_tests::process::alive;
use cake_tests::{Running, demo_model, programs, until};
use rustix::process::Signal;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// Demos that may be done before their moment was seen, where the machine is busy.
const TRIES: usize = 5;
/// How long processes may take to be gone after the demo's own end.
const GONE: Duration = Duration::from_secs(20);

/// A demo whose temporary files and state lie below one directory.
struct Demo {
    home: TempDir,
    running: Option<Running>,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let home = TempDir::with_prefix("cake-demo-test-").expect("a temporary folder");
        let mut command = Command::new(&programs().master);
        command
            .arg("demo")
            .args(args)
            .current_dir(home.path())
            .env("TMPDIR", home.path().join("tmp"))
            .env("CAKE_STATE", home.path().join("state"))
            .env_remove("CAKE_WORKERS")
            .env_remove("CAKE_LOG");
        std::fs::create_dir(home.path().join("tmp")).expect("made");
        let running = Some(Running::start(&mut command));
        Self { home, running }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("not finished yet")
    }

    /// What is left in the directory for temporary files.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path().join("tmp")).expect("it is still there");
        entries.map(|e| e.expect("listed").file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The process ids that the demo printed.
fn pids(stdout: &str) -> Vec<u32> {
    let started = stdout.lines().filter(|line| line.starts_with("started worker "));
    let pid =
        |line: &str| line.split_whitespace().skip_while(|word| *word != "pid").nth(1)?.parse().ok();
    started.filter_map(pid).collect()
}

#[track_caller]
fn assert_gone(pids: &[u32]) {
    for pid in pids {
        until(&format!("process {pid} to be gone"), GONE, || !alive(*pid));
    }
}

fn expected_stories() -> Vec<(String, String)> {
    let file = demo_model().join("expected.json");
    let text = std::fs::read(file).expect("the demo model's expected answers");
    let expected: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let cases = expected["cases"].as_array().expect("cases");
    let text =
        |case: &serde_json::Value, name: &str| case[name].as_str().expect("a text").to_owned();
    cases.iter().map(|case| (text(case, "question"), text(case, "text"))).collect()
}

#[test]
fn tells_the_expected_story_over_three_processes_and_cleans_up() {
    let (question, story) = expected_stories().swap_remove(0);
    let mut demo = Demo::start(&[]);
    demo.running().wait_for("started worker laptop", LIMIT);
    let while_running = pids(&demo.running().stdout());
    let finished = demo.running.take().expect("started above").finish(LIMIT).success();
    let all = pids(&finished.stdout);
    assert_eq!(all.len(), 3, "{}", finished.stdout);
    assert_eq!(while_running, all);
    assert!(finished.stdout.contains(&question), "{}", finished.stdout);
    assert!(finished.stdout.contains(&story), "expected {story:?} in {}", finished.stdout);
    for name in ["phone", "tablet", "laptop"] {
        assert!(finished.stdout.contains(&format!("{name} held layers")), "{}", finished.stdout);
    }
    assert_gone(&all);
    assert_eq!(demo.left(), [""; 0], "temporary files are left");
}

#[test]
fn answers_other_questions_as_the_reference_does() {
    for (question, story) in expected_stories().into_iter().skip(1).take(3) {
        let mut demo = Demo::start(&[&question]);
        let finished = demo.running.take().expect("started above").finish(LIMIT).success();
        assert!(finished.stdout.contains(&story), "expected {story:?} in {}", finished.stdout);
    }
}

/// Interrupts the demo once it printed `moment`.
#[track_caller]
fn interrupt(moment: &str, signal: Signal) {
    let was = (0..TRIES).any(|_| was_interrupted(moment, signal));
    assert!(was, "{TRIES} demos were done as if nobody had interrupted them after {moment:?}");
}

/// Whether it was; where it was done before anybody saw the moment, there was nothing to interrupt.
#[track_caller]
fn was_interrupted(moment: &str, signal: Signal) -> bool {
    let mut demo = Demo::start(&[]);
    demo.running().wait_for(moment, LIMIT);
    let all = pids(&demo.running().stdout());
    assert!(!all.is_empty());
    demo.running().signal(signal);
    let finished = demo.running.take().expect("started above").finish(LIMIT);
    let was = finished.status.code() != Some(0);
    if was {
        assert_eq!(finished.status.code(), Some(130), "{}{}", finished.stdout, finished.stderr);
        assert!(finished.stderr.contains("interrupted"), "{}", finished.stderr);
    }
    assert_gone(&pids(&finished.stdout));
    assert_eq!(demo.left(), [""; 0], "temporary files are left after {moment:?}");
    was
}

#[test]
fn an_interrupt_while_workers_start_leaves_nothing() {
    interrupt("started worker phone", Signal::INT);
}

#[test]
fn an_interrupt_after_the_start_leaves_nothing() {
    interrupt("started worker laptop", Signal::INT);
}

#[test]
fn a_request_to_terminate_leaves_nothing() {
    interrupt("started worker tablet", Signal::TERM);
}

#[test]
fn an_interrupt_during_the_push_or_the_answer_leaves_nothing() {
    interrupt("embedding and head stay on the master", Signal::INT);
}

#[test]
fn workers_do_not_outlive_a_demo_that_is_killed() {
    let mut demo = Demo::start(&[]);
    demo.running().wait_for("started worker laptop", LIMIT);
    let all = pids(&demo.running().stdout());
    assert_eq!(all.len(), 3);
    demo.running.take().expect("started above").kill();
    assert_gone(&all);
}
