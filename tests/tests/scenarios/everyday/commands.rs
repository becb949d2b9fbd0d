//! Commands and what they say.
use std::io::Write;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{
    Cluster, Invitation, Master, ModelShape, Running, Server, TestWorker, WorkerOptions, golden,
    model, not_shown, until,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Checks that a text contains all of these.
#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn members_that_are_busy_are_named_with_who_holds_them_and_the_master_takes_nothing_over() {
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let llama = path(&golden("llama").path);
    let mut chat = cluster.master.start(&["chat", &llama]);
    chat.wait_for("Type a message", LIMIT);
    let holder = format!("(process {})", chat.pid());
    let commands: [&[&str]; 5] = [
        &["run", &llama, "hello"],
        &["plan", &llama],
        &["compare", &llama],
        &["chat", &llama],
        &["serve", &llama, "--listen", "127.0.0.1:0", "--join", "127.0.0.1:0"],
    ];
    // All at once: each waits a moment for the other master to be done.
    let started: Vec<Running> = commands.iter().map(|args| cluster.master.start(args)).collect();
    for one in started {
        let ended = one.finish(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{}: {}", ended.command, ended.stderr);
        let parts = ["kitchen at ", "attic at ", &holder, "wait until", "--alone"];
        assert_says(&ended.stderr, &parts);
        assert!(!ended.stdout.contains("listening"), "{}", ended.stdout);
    }
    let asked = ["run", &llama, "hello", "--max-tokens", "1"];
    for more in [&["--alone"][..], &["--local-memory", "1GiB"]] {
        cluster.master.run(&[&asked[..], more].concat()).success();
    }
    chat.finish(LIMIT).success();
}

#[test]
fn members_that_are_down_are_named_and_the_others_go_on_if_they_have_room() {
    let mut cluster = Cluster::new(&["kitchen", "attic"]);
    let llama = path(&golden("llama").path);
    cluster.workers.pop();
    let run = ["run", &llama, "hello", "--max-tokens", "1", "--json"];
    let ended = cluster.master.run(&run).success();
    assert_says(&ended.stderr, &["note: going on without attic at ", "last seen "]);
    let answer: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(answer["stages"][0]["worker"], "kitchen", "{answer}");
    let plan = cluster.master.json(&["plan", &llama, "--json"]);
    assert_says(&plan["missing"].to_string(), &["attic"]);
    let left_out = cluster.master.run(&["plan", &llama, "--exclude", "attic"]).success();
    assert!(!left_out.stderr.contains("attic"), "nobody misses it: {}", left_out.stderr);
    // What does not fit those that are there says who is missing.
    let pinned = cluster.master.run(&["plan", &llama, "--place", "attic=0..2"]);
    assert_says(&pinned.stderr, &["not among kitchen", "without attic at "]);
    cluster.workers.pop();
    let ended = cluster.master.run(&run);
    assert_eq!(ended.status.code(), Some(1));
    assert_says(&ended.stderr, &["kitchen at ", "attic at ", "doctor", "--alone"]);
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_says(said["error"].as_str().expect("a sentence"), &["kitchen", "attic"]);
}

#[test]
fn a_machine_without_workers_says_that_it_computes_alone_unless_that_was_asked_for() {
    let master = Master::alone();
    let llama = path(&golden("llama").path);
    let run = ["run", &llama, "hello", "--max-tokens", "1"];
    let said = master.run(&run).success().stderr;
    assert_eq!(said.matches("note: there are no workers").count(), 1, "{said}");
    assert_says(&said, &["cake-master init", "--alone"]);
    let asked = master.run(&[&run[..], &["--alone"]].concat()).success().stderr;
    assert!(!asked.contains("note: "), "{asked}");
    master.run(&["init"]).success();
    assert_says(&master.run(&run).success().stderr, &["cake-master token"]);
}

#[test]
fn nothing_to_compare_is_said_and_is_no_success() {
    let llama = path(&golden("llama").path);
    let alone = Master::alone();
    assert_says(&alone.run(&["compare", &llama]).refusal(), &["no worker to compare", "init"]);
    let asked = alone.run(&["compare", &llama, "--alone"]).refusal();
    assert_says(&asked, &["no worker to compare", "--alone"]);
    let worker = TestWorker::new("kitchen");
    let master = Master::over([&worker]);
    let args = ["compare", &llama, "--local-memory", "1GiB", "--place", "master=0..5"];
    let ended = master.run(&args);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert_says(&ended.stderr, &["no worker has layers", "kitchen has no layers: --place"]);
}

/// Bytes that the system has available.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

#[test]
fn the_masters_own_memory_is_counted_like_any_devices() {
    /// Of a sequence in the longest context: 256 KiB for each token in f32.
    const SEQUENCE: u64 = 2 << 30;
    /// Sequences of that length for which a plan may have blocks.
    const MOST: u64 = 256;
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape {
        hidden_size: 128,
        intermediate_size: 128,
        layers: 32,
        heads: 16,
        kv_heads: 16,
        max_positions: 8192,
        ..ModelShape::small()
    };
    model::make(home.path(), &shape, 7).expect("the model can be written");
    let model = path(home.path());
    let master = Master::alone();
    let plan = |more: &[&str]| master.run(&[&["plan", &model, "--alone"], more].concat());
    // Twice of what is free; where the system does not say how much that is, as much as may be asked for.
    let parallel = match available_bytes() {
        0 => MOST,
        free => (2 * free / SEQUENCE + 1).min(MOST),
    };
    let words = parallel.to_string();
    let absurd = ["--context", "8192", "--parallel", &words, "--kv", "f32"];
    if available_bytes() < parallel * SEQUENCE {
        let refused = plan(&absurd).refusal();
        assert_says(&refused, &["master offers ", " free here, less a reserve of ", "--parallel "]);
        assert_says(&refused, &["it would fit with a context of ", "--local-memory"]);
        assert!(!refused.contains("EiB"), "{refused}");
    } else {
        not_shown("this machine has room for the absurd");
    }
    // Whoever knows better says so.
    plan(&[&absurd[..], &["--local-memory", "64TiB"]].concat()).success();
    let before = available_bytes();
    let fits = plan(&["--json", "--context", "256"]).json();
    let free = before.max(available_bytes());
    let memory = &fits["plan"]["stages"][0]["memory"];
    let part = |name: &str| memory[name].as_u64().expect("bytes");
    assert!(free == 0 || part("budget") <= free, "{memory}, {free} free");
    let embedding = 2 * 384 * 128; // It is the head, too.
    assert!(part("overhead") >= embedding, "embedding and head are counted: {memory}");
    let server = Server::start(&master, home.path(), &["--alone", "--context", "256"]);
    let budget = server.get("/api/cluster").good()["devices"][0]["memory"]["budget"].clone();
    assert!(budget.as_u64().is_some_and(|bytes| (1..1 << 45).contains(&bytes)), "{budget}");
}

#[test]
fn an_imagined_worker_that_changes_nothing_and_members_without_layers_are_told() {
    let llama = path(&golden("llama").path);
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let plan =
        |more: &[&str]| cluster.master.run(&[&["plan", &llama], more].concat()).success().stdout;
    let all = ["--place", "kitchen=0..5"];
    assert_says(&plan(&all), &["attic has no layers: --place"]);
    assert_says(&plan(&["--exclude", "attic"]), &["attic has no layers: left out by --exclude"]);
    let nothing = plan(&[&all[..], &["--what-if", "phone:3GiB"]].concat());
    assert_says(&nothing, &["phone has no layers", "--what-if changes nothing", "go to phone"]);
    let crumb = plan(&["--what-if", "crumb:1MiB"]);
    assert_says(&crumb, &["crumb has no layers: crumb offers 1 MiB", "--what-if changes nothing"]);
    let used = plan(&["--what-if", "phone:3GiB", "--place", "phone=0..5"]);
    assert!(!used.contains("changes nothing"), "{used}");
}

#[test]
fn a_token_leads_to_the_door_that_a_service_has_open() {
    let master = Master::alone();
    master.run(&["init"]).success();
    let closed = master.run(&["token", "--json"]).success();
    assert_says(&closed.stderr, &["note: no door is open yet", "cake-master serve"]);
    let closed: Value = serde_json::from_str(&closed.stdout).expect("JSON");
    assert_eq!(closed["door_open"], false);
    let args = ["--alone", "--join", "127.0.0.1:0", "--no-discovery"];
    let server = Server::start(&master, &golden("llama").path, &args);
    let issued = master.run(&["token", "--json"]).success();
    assert_eq!(issued.stderr, "", "the door is open");
    let issued: Value = serde_json::from_str(&issued.stdout).expect("JSON");
    let text = |name: &str| issued[name].as_str().expect("a text").to_owned();
    assert_eq!(issued["door_open"], true);
    let args = ["--master", &text("master"), "--token", &text("token")].map(str::to_owned).to_vec();
    let _first = TestWorker::start("a", WorkerOptions { args, ..WorkerOptions::default() });
    let joined = master.json(&["workers", "list", "--json"]);
    assert_eq!(joined[0]["name"], "a", "{joined}");
    // With --wait the same door does, and nobody complains that its address is taken.
    let mut waiting = master.start(&["token", "--wait", "--json"]);
    waiting.wait_for("}", LIMIT);
    let issued: Value = serde_json::from_str(&waiting.stdout()).expect("JSON");
    let args = ["--master", "--token"].into_iter().zip(["master", "token"]);
    let args = args.flat_map(|(name, field)| [name, issued[field].as_str().expect("a text")]);
    let args = args.map(str::to_owned).collect();
    let _second = TestWorker::start("b", WorkerOptions { args, ..WorkerOptions::default() });
    let waited = waiting.finish(LIMIT).success();
    assert_eq!(waited.stderr, "");
    drop(server);
    let closed = master.json(&["token", "--json"]);
    assert_eq!(closed["door_open"], false, "a killed service has no door");
}

/// What `doctor` says, and whether it was content.
fn doctor(master: &Master) -> (String, bool) {
    let ended = master.run(&["doctor"]);
    (ended.stdout.clone(), ended.status.success())
}

#[test]
fn doctor_says_what_to_do_whatever_there_is() {
    let mut cluster = Cluster { master: Master::alone(), workers: Vec::new() };
    let (said, content) = doctor(&cluster.master);
    assert_says(&said, &["FAIL this machine", "cake-master init", "--worker", "--insecure"]);
    assert!(!content);
    cluster.master.run(&["init"]).success();
    let (said, content) = doctor(&cluster.master);
    assert_says(&said, &["FAIL this machine", "nobody has joined", "cake-master token"]);
    assert!(!content);
    cluster.join(vec![("kitchen", WorkerOptions::default()), ("attic", WorkerOptions::default())]);
    let (said, content) = doctor(&cluster.master);
    assert!(content, "{said}");
    // Beside one's own service: at work, and the link as that measured it.
    let args = ["--join", "127.0.0.1:0", "--context", "128"];
    let server = Server::start(&cluster.master, &golden("llama").path, &args);
    let (said, content) = doctor(&cluster.master);
    let at_work = format!("at work for your own `serve` at {}", server.url);
    assert!(content && !said.contains("FAIL"), "{said}");
    assert_eq!(said.matches(&at_work).count(), 2, "{said}");
    assert_eq!(said.matches("as that `serve` measured it").count(), 2, "{said}");
    drop(server);
    // One that is down: by its name, with the command that starts it.
    let attic = cluster.workers.pop().expect("two joined");
    let command = format!("`cake-worker --name attic --listen {}`", attic.address);
    drop(attic);
    let (said, content) = doctor(&cluster.master);
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert_eq!((failed.len(), content), (1, false), "{said}");
    assert_says(failed[0], &["attic@", &command, "last seen "]);
}

/// Runs a command with this standard input.
fn piped(master: &Master, args: &[&str], input: &[u8]) -> cake_tests::Finished {
    let mut running = master.start(args);
    let mut stdin = running.stdin().expect("not taken yet");
    stdin.write_all(input).ok(); // It may have refused before all is written.
    drop(stdin);
    running.finish(LIMIT)
}

#[test]
fn run_takes_its_prompt_from_a_pipe() {
    let master = Master::alone();
    let llama = path(&golden("llama").path);
    let run = ["run", &llama, "--alone", "--max-tokens", "2", "--json"];
    let typed = master.json(&[&run[..], &["two\nlines"]].concat());
    for more in [&[][..], &["-"]] {
        let answer = piped(&master, &[&run[..], more].concat(), b"two\nlines\n").json();
        assert_eq!(answer["prompt_ids"], typed["prompt_ids"], "{more:?}");
    }
    let empty = piped(&master, &run, b" \n").refusal();
    assert_says(&empty, &["standard input is empty", "a prompt"]);
    let long = vec![b'a'; (16 << 20) + 1];
    assert_says(&piped(&master, &run, &long).refusal(), &["at most 16 MiB"]);
    assert_says(&piped(&master, &run, b"\xff").refusal(), &["no UTF-8"]);
}

#[test]
fn the_list_of_workers_says_who_is_there_and_who_is_shut_out_or_forgotten_is_gone() {
    let mut cluster = Cluster::new(&["kitchen", "attic"]);
    let of = |list: &[Value], name: &str| {
        list.iter().find(|known| known["name"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    };
    until("both to be there", LIMIT, || cluster.list().iter().all(|known| known["online"] == true));
    let list = cluster.list();
    for name in ["kitchen", "attic"] {
        let known = of(&list, name);
        assert_eq!(
            (&known["online"], known["memory_bytes"].as_u64()),
            (&true.into(), Some(1 << 30))
        );
        assert!(known["seen_seconds"].is_u64() && known["held_by"].is_null(), "{known}");
    }
    let mut chat = cluster.master.start(&["chat", &path(&golden("llama").path)]);
    chat.wait_for("Type a message", LIMIT);
    let text = cluster.master.run(&["workers", "list"]).success().stdout;
    assert_says(&text, &["1 GiB", "now", &format!("(process {})", chat.pid())]);
    chat.finish(LIMIT).success();
    let attic = cluster.workers.pop().expect("two joined");
    drop(attic);
    let known = of(&cluster.list(), "attic");
    assert_eq!((&known["online"], known["memory_bytes"].as_u64()), (&false.into(), Some(1 << 30)));
    let text = cluster.master.run(&["workers", "list"]).success().stdout;
    assert_says(&text, &["offline", "less than a minute ago"]);
    // By the beginning of an id.
    let id = of(&cluster.list(), "kitchen")["worker_id"].as_str().expect("an id").to_owned();
    let unknown = cluster.master.run(&["workers", "revoke", "zzzz"]).refusal();
    assert_says(&unknown, &["kitchen", "attic"]);
    let said = cluster.master.run(&["workers", "revoke", &id[..8]]).success().stdout;
    assert_says(&said, &["kitchen", &id, "shut out"]);
    cluster.master.run(&["workers", "forget", "attic"]).success();
    let list = cluster.list();
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["revoked"], true);
    cluster.master.run(&["workers", "forget", "kitchen"]).success();
    assert!(cluster.list().is_empty());
    let shut_out = cluster.authority().book().read().expect("readable");
    assert_eq!(shut_out.revoked().count(), 2, "their certificates count no more");
}

#[test]
fn a_worker_that_is_shut_out_says_why_it_is_not_used() {
    let mut cluster = Cluster::new(&["kitchen"]);
    cluster.master.run(&["workers", "revoke", "kitchen"]).success();
    let kitchen = cluster.workers.pop().expect("it joined");
    let store = tempfile::tempdir().expect("a folder");
    let kept = store.path().join("store");
    let copied =
        std::process::Command::new("cp").arg("-r").arg(kitchen.store()).arg(&kept).status();
    assert!(copied.expect("cp runs").success());
    drop(kitchen);
    let invitation = Invitation::from(&cluster.master, 1); // Its door is open.
    let identity = kept.join("identity.json");
    let text = std::fs::read_to_string(&identity).expect("kept");
    let mut content: Value = serde_json::from_str(&text).expect("JSON");
    content["master"] = invitation.master.clone().into();
    std::fs::write(&identity, content.to_string()).expect("written");
    let options = WorkerOptions { store: Some(kept), ..WorkerOptions::default() };
    let again = TestWorker::start("kitchen", options);
    until("it to say why", LIMIT, || again.log().contains("this worker is not used"));
    assert_says(&again.log(), &["shut it out or forgotten it", "cake-master token"]);
}
