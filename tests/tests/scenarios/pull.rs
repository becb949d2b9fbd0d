//! Models from a hub: fetched, resumed, refused, listed and removed, by the real program against a hub on loopback.
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cake_tests::hub::COMMIT;
use cake_tests::{Finished, Hub, Manners, Master, Running, Server, golden, not_shown, until};
use rustix::process::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const REPO: &str = "org/tiny";
const MIB: u64 = 1 << 20;

/// A person's machine with a cache of its own, and a hub.
pub(crate) struct Place {
    master: Master,
    hub: Hub,
}

impl Place {
    fn with(hub: Hub) -> Place {
        Place { master: Master::alone(), hub }
    }

    /// A hub with a golden model in six files.
    pub(crate) fn golden() -> Place {
        Place::with(Hub::of(REPO, &golden("llama-sharded").path))
    }

    /// A hub with a file of several parts.
    fn large() -> Place {
        Place::with(Hub::made(REPO, 40 * MIB + 12_345))
    }

    fn home(&self) -> PathBuf {
        self.master.state().join("hf")
    }

    fn folder(&self) -> PathBuf {
        self.home().join("hub").join("models--org--tiny")
    }

    fn snapshot(&self) -> PathBuf {
        self.folder().join("snapshots").join(COMMIT)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.master.bare(args);
        for name in [
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_OFFLINE",
            "http_proxy",
            "HTTP_PROXY",
        ] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", &self.hub.url).env("HF_HOME", self.home());
        command.env("HOME", self.master.state()).env_remove("XDG_CACHE_HOME");
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Finished {
        self.start(args).finish(LIMIT)
    }

    #[track_caller]
    fn pull(&self) -> Value {
        self.run(&["pull", REPO, "--json"]).json()
    }

    /// Files of the cache that are not all there.
    fn unfinished(&self) -> usize {
        let entries =
            std::fs::read_dir(self.folder().join("blobs")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("hexadecimal"));
        names.filter(|name| name.contains("incomplete")).count()
    }

    /// Bytes of unfinished files that are in their place, and known to be.
    fn arrived(&self) -> u64 {
        let entries =
            std::fs::read_dir(self.folder().join("blobs")).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let journals = paths.filter(|path| path.extension().is_some_and(|end| end == "parts"));
        journals.map(|path| journaled(&path)).sum()
    }

    /// Has a configuration in the cache, and nothing else of the model.
    fn pull_config(&self) {
        self.run(&["pull", REPO, "--include", "config.json"]).success();
    }

    /// A pull of all of it that has begun and gets no further than the first megabyte.
    fn hanging(&self) -> Running {
        self.hub.behave(Manners { hangs_after: Some(MIB), ..Manners::default() });
        let pulling = self.start(&["pull", REPO]);
        until("a megabyte to be sent", LIMIT, || self.hub.served() >= MIB);
        pulling
    }
}

/// Bytes that a journal of parts says are there: after what file it is of comes a number for each part.
fn journaled(path: &Path) -> u64 {
    const HEADER_BYTES: usize = 24;
    let journal = std::fs::read(path).unwrap_or_default();
    let (numbers, _) = journal.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<8>();
    numbers.iter().map(|number| u64::from_le_bytes(*number)).sum()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("it is there").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn a_pulled_model_is_found_by_its_name() {
    let place = Place::golden();
    let said = place.pull();
    assert_eq!(said["path"], place.snapshot().to_str().expect("UTF-8"));
    assert_eq!((&said["commit"], &said["fetched_bytes"]), (&Value::from(COMMIT), &said["bytes"]));
    let main = std::fs::read_to_string(place.folder().join("refs/main")).expect("written");
    assert_eq!(main, COMMIT);
    let golden = golden("llama-sharded").path;
    for name in names(&place.snapshot()) {
        let link = std::fs::read_link(place.snapshot().join(&name)).expect("a link");
        assert!(link.starts_with("../../blobs"), "{link:?}");
        let bytes = |path: PathBuf| std::fs::read(path).expect("it can be read");
        assert!(bytes(place.snapshot().join(&name)) == bytes(golden.join(&name)), "{name} differs");
    }
    let summary = place.run(&["inspect", REPO, "--json"]).json();
    assert_eq!((&summary["model"], &summary["layers"]), (&Value::from(REPO), &Value::from(12)));
    let at_commit = format!("{REPO}@{COMMIT}");
    place.run(&["inspect", &at_commit]).success();
    // Again: nothing crosses the network but the listing.
    let served = place.hub.served();
    assert_eq!(place.pull()["fetched_bytes"], 0);
    assert_eq!(place.hub.served(), served);
    let words = place.run(&["pull", REPO]).success();
    assert!(
        words.stdout.contains("org/tiny is in ") && words.stdout.contains("all there already"),
        "{words:?}"
    );
}

#[test]
fn a_service_fetches_a_model_and_has_it_at_hand() {
    let place = Place::golden();
    place.pull_config(); // Begun, and not finished.
    std::fs::remove_dir_all(place.folder().join("snapshots")).expect("it is there");
    let server = Server::from_command(place.command(&["serve", "--listen", "0", "--alone"]));
    assert_eq!(server.get("/api/tags").good(), json!({ "models": [] }));
    let ask = json!({ "model": REPO, "prompt": [1, 2, 3], "max_tokens": 2 });
    let refused = server.post("/v1/completions", &ask).refused(404);
    assert_eq!(refused, "the model \"org/tiny\" is not served here, no model is");
    let no_such = json!({ "model": "org/other", "stream": false });
    let refused = server.post("/api/pull", &no_such);
    assert_eq!(refused.body["error"], "the hub has no model \"org/other\": it answered 404");
    let lines = server.lines("/api/pull", &json!({ "model": format!("hf.co/{REPO}:latest") }));
    let said: Vec<Value> = lines.collect();
    assert_eq!(said.first().expect("lines")["status"], "pulling manifest");
    assert_eq!(said.last().expect("lines"), &json!({ "status": "success" }), "{said:?}");
    assert_eq!(server.get("/api/tags").good()["models"][0]["name"], "org/tiny:latest");
    assert_eq!(server.post("/v1/completions", &ask).good()["model"], REPO);
    let served = place.hub.served();
    assert_eq!(server.post("/api/pull", &json!({ "model": REPO, "stream": false })).status, 200);
    assert_eq!(place.hub.served(), served, "it is at hand");
    let listed = place.run(&["models", "list", "--json"]).json();
    assert_eq!(listed[0]["model"], REPO);
    let shown = place.run(&["models", "show", REPO, "--json"]).json();
    assert_eq!(shown["layers"], 12);
}

#[test]
fn a_model_that_is_not_here_is_named_with_what_brings_it() {
    let place = Place::golden();
    let said = place.run(&["inspect", "org/other"]).refusal();
    assert!(said.contains("`cake-master pull org/other` downloads it"), "{said}");
    assert_eq!(place.hub.requests(), 0, "nobody is asked who cannot answer");
    let said = place.run(&["pull", "org/other"]).refusal();
    assert_eq!(said, "the hub has no model \"org/other\": it answered 404");
    let said = place.run(&["pull", "org/tiny@v9"]).refusal();
    assert_eq!(said, "the hub has no revision \"v9\" of org/tiny: it answered 404");
}

/// On a terminal, which `script` makes.
#[test]
fn a_command_offers_to_pull_what_is_not_here() {
    let place = Place::golden();
    let on_a_terminal = |args: &[&str], answer: &str| {
        let own = place.command(args);
        let words: Vec<&str> = std::iter::once(own.get_program())
            .chain(own.get_args())
            .map(|word| word.to_str().expect("UTF-8"))
            .collect();
        let mut script = Command::new("script");
        script.args(["-qefc", &words.join(" "), "/dev/null"]);
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        let mut running = Running::start(&mut script);
        running.wait_for("[y/N]", LIMIT);
        let mut stdin = running.stdin().expect("piped");
        stdin.write_all(format!("{answer}\n").as_bytes()).expect("it reads");
        let finished = running.finish(LIMIT);
        drop(stdin);
        finished
    };
    if Command::new("script").arg("--version").output().is_err() {
        return not_shown("there is no `script` that makes a terminal");
    }
    let refused = on_a_terminal(&["inspect", REPO], "n");
    assert!(
        refused.stdout.contains("org/tiny is not here: pull it now (14 files, "),
        "{refused:?}"
    );
    assert!(refused.stdout.contains("no checkpoint \"org/tiny\""), "{refused:?}");
    assert!(!place.folder().exists());
    let pulled = on_a_terminal(&["inspect", REPO], "y").success();
    assert!(pulled.stdout.contains("12 layers"), "{pulled:?}");
}

#[test]
fn some_layers_need_some_files() {
    let place = Place::golden();
    let said = place.run(&["pull", REPO, "--only-layers", "0..1", "--json"]).json();
    let there = names(&place.snapshot());
    let weights = there.iter().filter(|name| name.ends_with(".safetensors")).count();
    assert!((1..6).contains(&weights), "{there:?}");
    assert!(there.contains(&"config.json".to_owned()), "{there:?}");
    assert!(said["left_out_files"].as_u64() >= Some(6 - weights as u64), "{said}");
    let said = place.run(&["pull", REPO, "--only-layers", "12..14"]).refusal();
    assert_eq!(said, "org/tiny has no tensor of layers 12..14; it has layers 0..12");
    place.pull();
    place.run(&["inspect", REPO]).success();
}

#[test]
fn patterns_choose_files() {
    let place = Place::golden();
    place.run(&["pull", REPO, "--include", "*-00002-*", "--include", "config.*"]).success();
    assert_eq!(names(&place.snapshot()), ["config.json", "model-00002-of-00006.safetensors"]);
    let said = place.run(&["pull", REPO, "--include", "*.gguf"]).refusal();
    assert!(said.starts_with("org/tiny has no file that fits [\"*.gguf\"]; it has "), "{said}");
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_where_it_leads() {
    let place = Place::golden();
    place.hub.behave(Manners { token: Some("hf_secret".into()), ..Manners::default() });
    let said = place.run(&["pull", REPO]).refusal();
    assert!(
        said.starts_with("org/tiny is gated, private or not there: the hub answered 401"),
        "{said}"
    );
    assert!(
        said.contains("HF_TOKEN") && said.contains(&format!("{}/org/tiny", place.hub.url)),
        "{said}"
    );
    let with = |token: &str| {
        let mut command = place.command(&["pull", REPO, "-vv"]);
        Running::start(command.env("HF_TOKEN", token)).finish(LIMIT)
    };
    let wrong = with("hf_wrong");
    assert!(
        !wrong.status.success() && wrong.stderr.contains("The token of HF_TOKEN was sent"),
        "{wrong:?}"
    );
    let right = with("hf_secret").success();
    assert!(!place.hub.leaked());
    for said in [&wrong.stderr, &right.stderr, &right.stdout] {
        assert!(!said.contains("hf_secret") && !said.contains("hf_wrong"), "{said}");
    }
}

#[test]
fn dropped_connections_cost_what_is_missing() {
    let place = Place::large();
    let drops = (1..=10).map(|i| i * 4 * MIB).collect();
    place.hub.behave(Manners { drops, ..Manners::default() });
    let said = place.pull();
    assert_eq!(said["bytes"], place.hub.bytes());
    let served = place.hub.served();
    assert!(
        served <= place.hub.bytes() + place.hub.bytes() / 100,
        "{served} of {}",
        place.hub.bytes()
    );
    assert_eq!(place.unfinished(), 0);
}

#[test]
fn a_killed_download_goes_on() {
    let place = Place::large();
    place.hub.behave(Manners { hangs_after: Some(30 * MIB), ..Manners::default() });
    let pulling = place.start(&["pull", REPO, "--json"]);
    // A little less than what is sent: each connection keeps some in its buffer. Small files are whole.
    until("28 MiB of the weights to be in their place, and their journal", LIMIT, || {
        place.arrived() >= 28 * MIB && place.unfinished() == 2
    });
    pulling.kill();
    let arrived = place.arrived();
    let listed = place.run(&["list", "--json"]).json();
    assert_eq!(listed[0]["partial_files"], 1, "{listed}");
    let listed = place.run(&["list"]).success().stdout;
    assert!(
        listed.contains("1 unfinished") && listed.contains("`cake-master pull org/tiny` goes on"),
        "{listed}"
    );
    assert!(!place.snapshot().exists(), "half a model is found by nobody");
    place.hub.behave(Manners::default());
    let again = place.pull();
    let fetched = again["fetched_bytes"].as_u64().expect("a number");
    let bytes = place.hub.bytes();
    assert!(fetched <= bytes - arrived, "{fetched} of {bytes} fetched though {arrived} were there");
}

#[test]
fn an_interrupted_download_says_that_it_goes_on() {
    let place = Place::large();
    place.hub.behave(Manners { hangs_after: Some(20 * MIB), ..Manners::default() });
    let pulling = place.start(&["pull", REPO, "--json"]);
    until("20 MiB to be sent", LIMIT, || place.hub.served() >= 20 * MIB);
    pulling.signal(Signal::INT);
    let finished = pulling.finish(LIMIT);
    assert_eq!(finished.status.code(), Some(130), "{finished:?}");
    assert!(
        finished.stderr.contains("the same command goes on where this one stopped"),
        "{finished:?}"
    );
    place.hub.behave(Manners::default());
    place.pull();
}

#[test]
fn two_do_not_fetch_the_same_model() {
    let place = Place::large();
    let pulling = place.hanging();
    let said = place.run(&["pull", REPO]).refusal();
    assert!(said.starts_with("another process is fetching "), "{said}");
    assert!(said.contains(" of this model (") && said.contains(".incomplete"), "{said}");
    let said = place.run(&["rm", REPO, "--yes"]).refusal();
    assert!(said.starts_with("another process is fetching"), "{said}");
    place.hub.behave(Manners::default());
    pulling.finish(LIMIT).success();
}

#[test]
fn what_a_running_download_will_show_is_not_deleted() {
    let place = Place::large();
    // Another revision has the configuration, too.
    place.pull_config();
    let commit = "1".repeat(40);
    let other = place.snapshot().with_file_name(&commit);
    std::fs::rename(place.snapshot(), &other).expect("a directory of ours");
    let pulling = place.hanging();
    let at_other = format!("{REPO}@{commit}");
    let said = place.run(&["rm", &at_other, "--yes"]).refusal();
    let expected = "another process is fetching or deleting files of org/tiny (";
    assert!(said.starts_with(expected), "{said}");
    place.hub.behave(Manners::default());
    pulling.finish(LIMIT).success();
    place.run(&["rm", &at_other, "--yes"]).success();
    assert!(!other.exists());
    let config = std::fs::read(place.snapshot().join("config.json")).expect("it leads to its blob");
    assert_eq!(config, b"{}");
}

/// By a program that does not know our lock.
#[test]
fn a_file_that_is_deleted_during_a_download_is_missed() {
    let place = Place::large();
    place.pull_config();
    let shown = place.snapshot().join("config.json");
    let blob = shown.canonicalize().expect("it leads to its blob");
    let pulling = place.hanging();
    std::fs::remove_file(&blob).expect("it is there");
    place.hub.behave(Manners::default());
    let finished = pulling.finish(LIMIT);
    let said = "config.json was there and is not any more";
    assert!(!finished.status.success() && finished.stderr.contains(said), "{finished:?}");
    assert!(!place.snapshot().join("model.safetensors").exists());
    assert_eq!(place.pull()["fetched_bytes"], 2);
    assert_eq!(std::fs::read(shown).expect("it leads to its blob"), b"{}");
}

#[test]
fn a_server_without_ranges_still_works() {
    let place = Place::large();
    place.hub.behave(Manners { no_ranges: true, drops: vec![20 * MIB], ..Manners::default() });
    let said = place.pull();
    assert_eq!(said["fetched_bytes"], place.hub.bytes());
    assert_eq!(place.unfinished(), 0);
}

#[test]
fn a_listing_of_names_alone_is_enough() {
    let place = Place::golden();
    place.hub.behave(Manners { names_only: true, ..Manners::default() });
    let said = place.pull();
    assert_eq!(said["fetched_bytes"], said["bytes"]);
    place.run(&["inspect", REPO]).success();
}

#[test]
fn a_busy_hub_is_asked_again_when_it_says() {
    let place = Place::golden();
    place.hub.behave(Manners { busy: 3, ..Manners::default() });
    let said = place.pull();
    assert!(said["seconds"].as_f64() >= Some(1.0), "{said}");
}

#[test]
fn what_is_not_the_file_is_told_and_not_kept() {
    const FILE: &str = "model-00003-of-00006.safetensors";
    let file = || Some(FILE.to_owned());
    let place = Place::golden();
    for (manners, expected) in [
        (
            Manners { wrong: file(), ..Manners::default() },
            "what came is not what the hub has: expected SHA-256 ",
        ),
        (Manners { pointer: file(), ..Manners::default() }, "there is a Git LFS pointer"),
        (
            Manners { page: file(), ..Manners::default() },
            "the server sends a web page instead of the file",
        ),
    ] {
        place.hub.behave(manners);
        let said = place.run(&["pull", REPO]).refusal();
        assert!(said.starts_with(FILE) && said.contains(expected), "{said}");
        assert!(!place.snapshot().exists());
    }
    place.hub.behave(Manners::default());
    place.pull();
    place.run(&["inspect", REPO]).success();
}

#[test]
fn a_model_is_listed_and_removed() {
    let place = Place::golden();
    let nothing = place.run(&["list"]).success().stdout;
    assert!(nothing.starts_with("no model is here (looked in "), "{nothing}");
    place.pull();
    let listed = place.run(&["list", "--json"]).json();
    assert_eq!(
        (&listed[0]["model"], &listed[0]["partial_files"]),
        (&Value::from(REPO), &Value::from(0))
    );
    assert_eq!(listed[0]["revisions"][0]["refs"][0], "main");
    let said = place.run(&["rm", REPO]).refusal();
    assert!(said.starts_with("nobody can be asked here whether to delete org/tiny"), "{said}");
    assert!(place.folder().exists());
    let removed = place.run(&["rm", "org/tiny@main", "--yes", "--json"]).json();
    assert_eq!(removed["freed_bytes"], listed[0]["bytes"]);
    assert!(!place.folder().exists());
    let said = place.run(&["rm", REPO, "--yes"]).refusal();
    assert!(said.starts_with("org/tiny is not in the cache: looked for "), "{said}");
}

#[test]
fn nothing_is_fetched_that_has_no_room() {
    // A hub that promises more than any disk has would have to be believed: its listing is, and nothing else is asked.
    let place = Place::with(Hub::promising(REPO, 3 << 40));
    let said = place.run(&["pull", REPO]).refusal();
    if !said.starts_with("no room for org/tiny") {
        return not_shown(format!("the disk is larger than the file: {said}"));
    }
    assert_eq!(place.hub.requests(), 0);
}
