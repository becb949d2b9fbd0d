//! What the master does about a stage that misbehaves.
use std::time::{Duration, Instant};

use cake_tests::streams::{COMPLETIONS, count, prompt, together};
use cake_tests::{
    HeldBlobs, Lan, Lie, Master, Meddler, ModelShape, Server, TestWorker, WorkerOptions,
    budget_for, master, model, not_shown, until,
};
use serde_json::json;
use tempfile::TempDir;

/// Longer than anything here takes, shorter than the longest that a step may.
const LIMIT: Duration = Duration::from_secs(60);
const TOKENS: usize = 40;
pub(crate) const ARGS: &[&str] =
    &["--context", "512", "--chunk", "16", "--local-memory", "0", "--parallel", "8"];

/// A model of six small layers, and the memory of a worker that can hold three of them, but not four.
pub(crate) struct Home {
    pub(crate) directory: TempDir,
    pub(crate) budget: u64,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let shape = ModelShape { layers: 6, ..ModelShape::tiny() };
        model::make(directory.path(), &shape, 5).expect("written");
        let budget = budget_for(directory.path(), 3, ARGS);
        Self { directory, budget }
    }

    /// A worker, and somebody between it and its master.
    pub(crate) fn worker(&self, name: &str) -> (TestWorker, Meddler) {
        // Where weights lie in the files themselves, what is written there is computed with.
        let args = vec!["--weights".to_owned(), "map".to_owned()];
        let options = WorkerOptions { memory: self.budget, args, ..WorkerOptions::default() };
        let worker = TestWorker::start(name, options);
        let meddler = Meddler::before(&worker.address);
        (worker, meddler)
    }

    /// Workers of these names, the first two of which hold layers when a server starts over them.
    pub(crate) fn site(&self, names: &[&str], more: &[&str]) -> Site {
        let (workers, meddlers): (Vec<_>, Vec<_>) =
            names.iter().map(|name| self.worker(name)).unzip();
        let master = Master::at(meddlers.iter().map(|meddler| meddler.address.clone()));
        let pins = master::pins(&[(names[0], 0, 3), (names[1], 3, 6)]);
        let pins = pins.iter().map(String::as_str);
        let args: Vec<&str> =
            pins.chain(ARGS.iter().copied()).chain(more.iter().copied()).collect();
        let server = Server::start(&master, self.directory.path(), &args);
        Site { server, workers, meddlers, _master: master }
    }
}

/// A server over workers, each behind somebody who may spoil what it says.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) workers: Vec<TestWorker>,
    pub(crate) meddlers: Vec<Meddler>,
    _master: Master,
}

impl Site {
    /// The place of the last device of the chain.
    fn last(&self) -> usize {
        let shown = self.server.get("/api/cluster").good();
        let chain = shown["devices"].as_array().expect("a list");
        let name = &chain.last().expect("a device")["name"];
        self.workers.iter().position(|worker| *name == *worker.name).expect("one of ours")
    }

    /// Waits until so many more tokens were made than `made`.
    fn tokens(&self, made: f64, more: f64) {
        let now = || count(&self.server, "cake_generated_tokens_total");
        until("tokens", LIMIT, || now() > made + more);
    }

    /// Losses of this kind that devices were blamed for.
    fn blamed(&self, kind: &str) -> f64 {
        let line = format!("cake_worker_failures_total{{kind=\"{kind}\"}} ");
        let text = self.server.text("/metrics");
        let value = text.lines().find_map(|found| found.strip_prefix(&line));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }
}

#[test]
fn who_answers_what_cannot_be_again_and_again_comes_into_quarantine_until_it_is_started_again() {
    let home = Home::new();
    let mut site = home.site(&["a", "b"], &[]);
    let whole = together(&site.server, TOKENS, || {});
    let made = count(&site.server, "cake_generated_tokens_total");
    let pipelines = count(&site.server, "cake_pipelines_total");
    let (server, meddlers) = (&site.server, &site.meddlers);
    let workers = &mut site.workers;
    let answers = together(server, TOKENS, || {
        until("tokens", LIMIT, || count(server, "cake_generated_tokens_total") > made + 20.0);
        meddlers[1].lie(Lie::Rows, u64::MAX);
        let shown = || server.get("/api/cluster").good()["set_aside"].clone();
        until("the quarantine", LIMIT, || shown()[0]["quarantine"] == true);
        let told = shown();
        assert_eq!(told[0]["worker"], "b", "{told}");
        let seconds = told[0]["seconds"].as_u64().expect("a number");
        assert!(seconds > LIMIT.as_secs(), "longer than the pauses before, which are over: {told}");
        let why = told[0]["reason"].as_str().expect("a sentence").to_owned();
        assert!(why.contains("rows, expected"), "{why}");
        // It answers nothing without b, and says why.
        until("the reason", LIMIT, || {
            let reply = server.get("/ready");
            let why = reply.body["reason"].as_str().unwrap_or_default();
            reply.status == 503 && why.contains("\"b\" is in quarantine")
        });
        assert_eq!(server.get("/ready").body["status"], "degraded");
        assert_eq!(count(server, "cake_workers_set_aside"), 1.0);
        // Tens of thousands of answers could have been made in this time.
        let built = count(server, "cake_pipelines_total") - pipelines;
        assert!((1.0..=3.0).contains(&built), "{built} pipelines");
        // A person starts it again, and it lies no more.
        meddlers[1].behave();
        let store = workers[1].store().to_owned();
        workers[1].kill();
        let (memory, store) = (home.budget, Some(store));
        let again = TestWorker::start("b", WorkerOptions { memory, store, ..Default::default() });
        meddlers[1].lead_to(&again.address);
        workers.push(again);
    });
    assert!(answers == whole, "answers over lies");
}

#[test]
fn each_lie_costs_a_pause_and_no_token() {
    let home = Home::new();
    let site = home.site(&["a", "b", "c"], &[]);
    let whole = together(&site.server, TOKENS, || {});
    for lie in [Lie::Shape, Lie::NotANumber, Lie::Generation, Lie::Headless, Lie::TooLarge] {
        let kind = if lie == Lie::NotANumber { "not_finite" } else { "malformed" };
        let mended = || count(&site.server, "cake_recovery_seconds_count");
        let (before, blamed) = (mended(), site.blamed(kind));
        let made = count(&site.server, "cake_generated_tokens_total");
        let answers = together(&site.server, TOKENS, || {
            site.tokens(made, 20.0);
            let liar = &site.meddlers[site.last()];
            let lied = liar.lied();
            liar.lie(lie, 1);
            until("the lie", LIMIT, || liar.lied() > lied);
            until("the loss to be mended", LIMIT, || mended() > before);
        });
        assert!(answers == whole, "answers over {lie:?}");
        assert_eq!(site.blamed(kind), blamed + 1.0, "{lie:?}");
        until("the service to be whole", LIMIT, || site.server.get("/ready").status == 200);
    }
}

#[test]
fn who_ends_its_stream_after_every_first_step_is_soon_done_without() {
    let home = Home::new();
    let site = home.site(&["a", "b", "c"], &[]);
    let whole = together(&site.server, TOKENS, || {});
    let made = count(&site.server, "cake_generated_tokens_total");
    let pipelines = || count(&site.server, "cake_pipelines_total");
    let (before, mut built) = (pipelines(), 0.0);
    let answers = together(&site.server, TOKENS, || {
        site.tokens(made, 20.0);
        let last = site.last();
        let (liar, name) = (&site.meddlers[last], json!(*site.workers[last].name));
        liar.lie(Lie::Last, u64::MAX);
        until("the others to go on", LIMIT, || {
            let shown = site.server.get("/api/cluster").good();
            let chain = shown["devices"].as_array().expect("a list");
            shown["phase"] == "ready" && chain.iter().all(|device| device["name"] != name)
        });
        built = pipelines() - before;
        let by_others = count(&site.server, "cake_generated_tokens_total");
        site.tokens(by_others, 100.0);
        liar.behave();
    });
    assert!(answers == whole, "answers over streams that end");
    assert!(site.blamed("lost") >= 2.0, "once is nothing");
    // Thousands of streams could have ended in this time.
    assert!((2.0..=5.0).contains(&built), "{built} pipelines");
}

#[test]
fn what_somebody_wrote_into_a_running_stages_blob_is_found_and_pushed_again() {
    use std::os::unix::fs::FileExt;
    let home = Home::new();
    let site = home.site(&["a", "b"], &[]);
    let whole = together(&site.server, TOKENS, || {});
    let (made, pushed) = (
        count(&site.server, "cake_generated_tokens_total"),
        count(&site.server, "cake_pushed_bytes_total"),
    );
    let answers = together(&site.server, TOKENS, || {
        site.tokens(made, 20.0);
        // Numbers in the middle of a matrix, all of them NaN.
        let blobs = HeldBlobs::of(site.workers[1].store()).whole;
        let (path, bytes) = blobs.first().expect("a blob");
        let file = std::fs::File::options().write(true).open(path).expect("writable");
        file.write_all_at(&[0xff; 4096], bytes / 2).expect("written");
        until("the loss to be mended", LIMIT, || {
            count(&site.server, "cake_recovery_seconds_count") > 0.0
        });
    });
    assert!(answers == whole, "answers over a blob that was written to");
    assert_eq!(site.blamed("not_finite"), 1.0);
    assert!(count(&site.server, "cake_pushed_bytes_total") > pushed, "the blob was pushed again");
}

#[test]
fn a_swallowed_step_is_missed_and_computed_elsewhere() {
    let home = Home::new();
    let site = home.site(&["a", "b", "c"], &[]);
    let whole = together(&site.server, TOKENS, || {});
    for stage in [1, 0] {
        let made = count(&site.server, "cake_generated_tokens_total");
        let mended = count(&site.server, "cake_recovery_seconds_count");
        let mut silence = None;
        let answers = together(&site.server, TOKENS, || {
            site.tokens(made, 20.0);
            site.meddlers[stage].swallow(1);
            let began = Instant::now();
            until("the loss to be mended", LIMIT, || {
                let swallowed = site.meddlers[stage].swallowed() > 0;
                swallowed && count(&site.server, "cake_recovery_seconds_count") > mended
            });
            silence = Some(began.elapsed());
        });
        assert!(answers == whole, "answers over a swallowed step");
        println!("mended after {:.1} s", silence.expect("it was").as_secs_f64());
        until("the service to be whole", LIMIT, || site.server.get("/ready").status == 200);
    }
}

#[test]
fn lonely_steps_that_are_swallowed_are_missed_too_and_who_asks_later_is_answered() {
    // One step for each stage, and one whose scores the master computes.
    const PLACES: u64 = 3;
    let home = Home::new();
    let site = home.site(&["a", "b"], &[]);
    let request =
        json!({ "prompt": prompt(1, 60), "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let whole = site.server.post(COMPLETIONS, &request).good()["choices"].clone();
    site.meddlers[1].swallow(PLACES);
    // Prompts so short that a step of each is on its way at once; nobody waits for their answers.
    let stream = |number: usize| {
        let request = json!({ "prompt": prompt(number, 2), "max_tokens": 8, "stream": true });
        site.server.stream(COMPLETIONS, &request)
    };
    let streams: Vec<_> = (0..8).map(stream).collect();
    until("all places to be taken", LIMIT, || site.meddlers[1].swallowed() == PLACES);
    drop(streams);
    until("who asked to be gone", LIMIT, || {
        let load = site.server.get("/api/cluster").good()["load"].clone();
        load["running"] == 0 && load["waiting"] == 0
    });
    let asked = Instant::now();
    let answer = site.server.post(COMPLETIONS, &request).good()["choices"].clone();
    println!("a clean request was answered after {:.1} s", asked.elapsed().as_secs_f64());
    assert_eq!(answer, whole);
    // It was answered because they were missed: by the way on which they got lost.
    assert!(count(&site.server, "cake_recovery_seconds_count") >= 1.0);
    assert!(site.blamed("hop") >= 1.0, "{}", site.server.text("/metrics"));
}

#[test]
fn two_workers_cut_off_from_each_other_hand_on_over_the_master_that_both_still_see() {
    let home = Home::new();
    let (lan, hosts) = match Lan::new(3) {
        Ok(made) => made,
        Err(why) => {
            return not_shown(format_args!("no network of our own can be made: {why}"));
        }
    };
    let _entered = lan.enter();
    let places = ["a", "b"].into_iter().zip(&hosts[1..]);
    let start = |(name, host): (&str, &cake_tests::Host)| {
        let options = WorkerOptions {
            memory: home.budget,
            listen: "0.0.0.0:7117".to_owned(),
            args: vec!["--insecure".to_owned()],
            host: Some(host.clone()),
            ..WorkerOptions::default()
        };
        TestWorker::start(name, options)
    };
    let _workers: Vec<TestWorker> = places.map(start).collect();
    let mut master = Master::at(hosts[1..].iter().map(|host| format!("{}:7117", host.ip)));
    master.now_on(&hosts[0]);
    let pins = master::pins(&[("a", 0, 3), ("b", 3, 6)]);
    let pins = pins.iter().map(String::as_str);
    let args: Vec<&str> = pins.chain(ARGS.iter().copied()).chain(["--insecure"]).collect();
    let server = Server::start(&master, home.directory.path(), &args);
    let whole = together(&server, TOKENS, || {});
    let direct = || server.get("/api/cluster").good()["devices"][0]["direct"].clone();
    assert_eq!(direct(), json!(true));
    let made = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        until("tokens", LIMIT, || count(&server, "cake_generated_tokens_total") > made + 20.0);
        // Without a word to anybody: packets are lost.
        hosts[1].cut_from(&hosts[2]);
        hosts[2].cut_from(&hosts[1]);
        let cut = Instant::now();
        until("the loss to be mended", LIMIT, || {
            count(&server, "cake_recovery_seconds_count") > 0.0
        });
        println!("mended after {:.1} s", cut.elapsed().as_secs_f64());
    });
    assert!(answers == whole, "answers over the detour");
    assert_eq!(direct(), json!(false));
    assert_eq!(server.get("/ready").body["status"], "ready", "nobody is to blame");
    assert!(together(&server, TOKENS, || {}) == whole);
    assert_eq!(count(&server, "cake_recovery_seconds_count"), 1.0);
}
