//! Connections: half-sent ones, idle ones, too many of them, and names that are not the server's.
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cake_tests::process::{peak_bytes, status_bytes};
use cake_tests::{
    Cluster, Far, Finished, Master, Running, Server, golden, master, not_shown, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const COMPLETIONS: &str = "/v1/completions";
/// Files that a program may have open where there are few.
const FEW_FILES: u32 = 64;

/// A server whose words for people are kept.
struct Serving {
    running: Running,
    address: String,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let mut running = Running::start(command);
        running.wait_for("listening on http://", LIMIT);
        let said = running.stdout();
        let address = said.trim().rsplit_once("http://").expect("waited for").1.to_owned();
        Self { running, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    /// What comes back for this, until the connection is closed.
    fn say(&self, what: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(what.as_bytes()).expect("taken");
        rest(&mut stream)
    }

    fn get(&self, path: &str, headers: &str) -> String {
        let host = &self.address;
        self.say(&format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n"
        ))
    }
}

/// Everything that still comes; a connection that is reset has ended, too.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A header of an answer.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    let value = |line: &'a str| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    };
    head.lines().find_map(value)
}

fn serve(master: &Master, model: &Path, args: &[&str]) -> Command {
    let model = master::path(model);
    let first = ["serve", &model, "--listen", "127.0.0.1:0"];
    master.command(&[&first, args].concat())
}

/// The same program where it may have so many files open, and no more.
fn with_files(command: &Command, files: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

#[test]
fn requests_that_never_become_whole_end_and_hold_neither_memory_nor_others() {
    const BODY: usize = 15 << 20;
    let golden = golden("llama");
    let master = Master::alone();
    let serving = Serving::start(&mut serve(&master, &golden.path, &[]));
    let pid = serving.running.pid();
    let idle = status_bytes(pid, "VmRSS:").expect("it runs");
    let half = |what: &str| {
        let mut stream = serving.connect();
        stream.write_all(what.as_bytes()).expect("taken");
        stream
    };
    let mut heads: Vec<TcpStream> =
        (0..40).map(|_| half("POST /v1/completions HTTP/1.1\r\nhost: local")).collect();
    let announced =
        format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY}\r\n\r\n");
    let mut bodies: Vec<TcpStream> = (0..60).map(|_| half(&announced)).collect();
    let sent = std::thread::scope(|scope| {
        // All but a byte of each MiB, or as much as is taken until the server ends it.
        let send = |stream: &mut TcpStream| {
            stream.set_write_timeout(Some(LIMIT)).expect("a socket");
            let mib = vec![b' '; 1 << 20];
            (0..BODY >> 20).all(|_| match stream.write_all(&mib[1..]) {
                Ok(()) => true,
                Err(error) => {
                    let is_late =
                        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                    assert!(!is_late, "neither taken nor ended in time");
                    false
                }
            })
        };
        let sending: Vec<_> =
            bodies.iter_mut().map(|stream| scope.spawn(move || send(stream))).collect();
        // Meanwhile others are answered.
        let body = json!({ "prompt": golden.prompt_ids, "max_tokens": 2 }).to_string();
        let length = body.len();
        let answer = serving.say(&format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(serving.get("/health", "").contains("\"ok\""));
        sending.into_iter().map(|one| one.join().expect("no panic")).filter(|all| *all).count()
    });
    assert!(sent >= 3, "there is room for three of them at once: {sent} were sent");
    let more = peak_bytes(pid).expect("it runs").saturating_sub(idle);
    eprintln!("60 unfinished bodies of 15 MiB: {} MiB more at the peak", more >> 20);
    assert!(more < 160 << 20, "{more} bytes more");
    for head in &mut heads {
        assert_eq!(rest(head), "");
    }
    for body in &mut bodies {
        let said = rest(body);
        let expected = ["HTTP/1.1 408", "HTTP/1.1 503", "HTTP/1.1 413"];
        assert!(
            said.is_empty() || expected.iter().any(|status| said.starts_with(status)),
            "{said}"
        );
    }
    assert!(serving.get("/health", "").contains("\"ok\""));
}

#[test]
fn a_hundred_idle_connections_where_files_are_few_change_nothing_for_the_cluster() {
    let golden = golden("llama-sharded");
    let cluster = Cluster::new(&["a", "b"]);
    let pins = master::pins(&[("a", 0, 6), ("b", 6, 12)]);
    let mut args = vec!["--context", "256", "--join", "127.0.0.1:0", "--grace", "1"];
    args.extend(pins.iter().map(String::as_str));
    let command = serve(&cluster.master, &golden.path, &args);
    let serving = Serving::start(&mut with_files(&command, FEW_FILES));
    let said = serving.running.stderr();
    assert!(said.contains("24 connections of clients at once"), "{said}");
    let mut idle: Vec<TcpStream> = (0..100).map(|_| serving.connect()).collect();
    assert!(serving.get("/health", "").contains("\"ok\""));
    let devices = || {
        let answer = serving.get("/api/cluster", "");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let shown: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        shown["devices"].to_string()
    };
    assert!(devices().contains("\"b\""));
    cluster.master.run(&["workers", "revoke", "b"]).success();
    let mut more = serving.connect();
    until("the revoked worker to be shut out", LIMIT, || {
        more = serving.connect();
        let shown = devices();
        !shown.contains("\"b\"") || shown.contains("lost")
    });
    drop(more);
    let counted = serving.get("/metrics", "");
    let ended = |line: &&str| line.starts_with("cake_http_connections_ended_total{why=\"room\"}");
    let ended = counted.lines().find(ended).expect("counted");
    let ended: f64 =
        ended.rsplit_once(' ').and_then(|(_, count)| count.parse().ok()).expect("many");
    assert!(ended >= 76.0, "{ended}");
    // Those that were connected first have been left.
    for stream in &mut idle[..76] {
        assert_eq!(rest(stream), "");
    }
}

#[test]
fn a_page_whose_name_was_made_to_lead_here_gets_nothing() {
    let golden = golden("llama");
    let args = ["--cors-origin", "http://cake.example:80"];
    let server = Server::start(&Master::alone(), &golden.path, &args);
    let port = server.url.rsplit_once(':').expect("a port").1;
    for own in
        ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1", "[::1]:80", "192.168.1.2:80"]
    {
        server.get_as(own, "/v1/models").good();
    }
    server.get_as("cake.example:80", "/v1/models").good();
    let bound = format!("workstation:{port}");
    for other in ["workstation", &bound, "host.docker.internal", "evil.example", "cake.example:81"]
    {
        for path in ["/v1/models", "/api/cluster", "/metrics", "/", "/page/app.js"] {
            let said = server.get_as(other, path).refused(403);
            let told = format!("--cors-origin http://{other}");
            assert!(said.contains(&told) && said.contains("IP address"), "{path}: {said}");
        }
        assert_eq!(server.get_as(other, "/health").good()["status"], "ok");
        assert_eq!(
            server.get_as(other, "/ready").good(),
            json!({ "status": "ready", "phase": "ready", "reason": null })
        );
    }
    drop(server);
    // On other addresses it is the same; with a key, which no page from elsewhere has, any name will do.
    let home = tempfile::tempdir().expect("a folder");
    let keys = home.path().join("keys");
    std::fs::write(&keys, "secret\n").expect("written");
    let keys = master::path(&keys);
    let master = Master::alone();
    let model = master::path(&golden.path);
    for (args, expected) in
        [(vec![], "HTTP/1.1 403"), (vec!["--api-key-file", &keys], "HTTP/1.1 200")]
    {
        let first = ["serve", &model, "--listen", "0.0.0.0:0"];
        let mut serving = Serving::start(&mut master.command(&[&first[..], &args].concat()));
        serving.address = serving.address.replace("0.0.0.0", "127.0.0.1");
        let answer = serving.say(
            "GET /v1/models HTTP/1.1\r\nhost: workstation\r\nauthorization: Bearer secret\r\nconnection: close\r\n\r\n",
        );
        assert!(answer.starts_with(expected), "{answer}");
    }
}

/// The answer's body.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Prometheus' own tool: `CAKE_PROMTOOL`, what `tests/clients/install.sh` took from Debian, or one in the path.
fn promtool() -> Option<PathBuf> {
    let taken = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/promtool");
    let given = std::env::var_os("CAKE_PROMTOOL").map(PathBuf::from);
    let mut candidates = given.into_iter().chain([taken, PathBuf::from("promtool")]);
    candidates.find(|tool| Command::new(tool).arg("--version").output().is_ok())
}

#[test]
fn metrics_speak_to_prometheus_in_the_format_that_it_asks_for() {
    let golden = golden("llama");
    let master = Master::alone();
    let serving = Serving::start(&mut serve(&master, &golden.path, &[]));
    // So that there is something of everything.
    let prompt = json!({ "prompt": golden.prompt_ids, "max_tokens": 3 }).to_string();
    let length = prompt.len();
    let answer = serving.say(&format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{prompt}"
    ));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let plain = serving.get("/metrics", "");
    let kind = |answer: &str| header(answer, "content-type").expect("a type").to_owned();
    assert_eq!(kind(&plain), "text/plain; version=0.0.4; charset=utf-8");
    assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    assert!(plain.contains("# TYPE cake_prompt_tokens_total counter\n"), "{plain}");
    let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let open = serving.get("/metrics", accept);
    assert_eq!(kind(&open), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.ends_with("# EOF\n"), "{open}");
    // The same numbers, whoever asks, once nothing changes any more.
    let counted = |text: &str| {
        let about = ["cake_prompt_tokens_total", "cake_batch_sequences_bucket", "cake_kv_blocks"];
        let lines = text.lines().filter(|line| about.iter().any(|name| line.starts_with(name)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(counted(&plain).len() > 5, "{plain}");
    until("the same numbers", LIMIT, || {
        counted(&serving.get("/metrics", "")) == counted(&serving.get("/metrics", accept))
    });

    let Some(tool) = promtool() else {
        return not_shown("no promtool: tests/clients/install.sh gets it");
    };
    let mut check = Command::new(tool);
    let mut check = Running::start(check.args(["check", "metrics"]));
    check.stdin().expect("not taken yet").write_all(body(&plain).as_bytes()).expect("it reads");
    let Finished { status, stdout, stderr, .. } = check.finish(LIMIT);
    assert!(status.success() && stdout.is_empty() && stderr.is_empty(), "{stdout}{stderr}");
}

#[test]
fn every_request_has_an_id_and_a_line_in_the_log_without_what_it_said() {
    let golden = golden("llama");
    let master = Master::alone();
    let mut command = serve(&master, &golden.path, &["-v"]);
    let serving = Serving::start(command.env("NO_COLOR", "1"));
    let id = |answer: &str| header(answer, "x-request-id").expect("an id").to_owned();
    let given = serving.get("/v1/models", "x-request-id: mine-1.a_B\r\n");
    assert_eq!(id(&given), "mine-1.a_B");
    let (one, other) = (id(&serving.get("/health", "")), id(&serving.get("/health", "")));
    assert!(one != other && one.len() >= 16, "{one} {other}");
    let odd = id(&serving.get("/v1/nothing?secret=word", "x-request-id: a b\"c\r\n"));
    assert!(odd.len() >= 16 && !odd.contains(' '), "{odd}");
    let prompt =
        json!({ "prompt": "unspeakable words", "max_tokens": 3, "stream": true }).to_string();
    let length = prompt.len();
    let answer = serving.say(&format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nx-request-id: streamed\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{prompt}"
    ));
    assert!(answer.starts_with("HTTP/1.1 200") && id(&answer) == "streamed", "{answer}");
    let refused = serving.get("/v1/models", "host: evil.example\r\n");
    assert!(refused.starts_with("HTTP/1.1 403") && !id(&refused).is_empty(), "{refused}");
    let line = |id: &str| {
        let log = serving.running.stderr();
        let of = |line: &&str| line.contains(" method=") && line.contains(id);
        log.lines().find(of).map(str::to_owned)
    };
    for id in ["mine-1.a_B", &one, &odd, "streamed"] {
        until("a line", LIMIT, || line(id).is_some());
    }
    let streamed = line("streamed").expect("waited for");
    for part in ["method=POST", "path=/v1/completions", "status=200", "seconds=", "bytes="] {
        assert!(streamed.contains(part), "{streamed}");
    }
    assert!(line(&odd).expect("waited for").contains("status=404"));
    // The sequence that was computed for it has its id, too.
    let log = || serving.running.stderr();
    let of_sequence = |line: &str| line.contains("sequence=") && line.contains("streamed");
    until("the sequence's line", LIMIT, || log().lines().any(of_sequence));
    assert!(!log().contains("unspeakable") && !log().contains("secret"), "{}", log());
}

/// A streamed answer that takes long, its first piece read.
fn long_stream(serving: &Serving) -> (TcpStream, String) {
    let request = json!({
        "prompt": [1, 2, 3], "max_tokens": 1000, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let (body, mut stream) = (request.to_string(), serving.connect());
    let length = body.len();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).expect("taken");
    let mut said = String::new();
    while !said.contains("data: ") {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).expect("in time");
        assert!(read > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&some[..read]));
    }
    (stream, said)
}

#[test]
fn a_server_that_ends_says_so_to_everybody() {
    // The server itself ends them where the machine is so busy that the second signal comes late: then once more.
    assert!((0..5).any(|_| is_ended_by_a_second_signal()), "none was ended by it");
}

/// Whether that ended the answers that went on after a first one, and not their time; all else is shown either way.
fn is_ended_by_a_second_signal() -> bool {
    let far = Far::start();
    let mut serving = Serving::start(&mut serve(&far.master, &far.model, &Far::PLACE));
    let (mut stream, _) = long_stream(&serving);
    // One that waits for its whole answer.
    let request =
        json!({ "prompt": [4, 5], "max_tokens": 1000, "temperature": 0, "ignore_eos": true });
    let (body, mut whole) = (request.to_string(), serving.connect());
    let length = body.len();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
    );
    whole.write_all((head + &body).as_bytes()).expect("taken");
    until("both to run", LIMIT, || {
        serving.get("/metrics", "").contains("cake_sequences{state=\"running\"} 2")
    });
    serving.running.signal(Signal::INT);
    serving.running.wait_for("finishing 2 answers, for 10 s at most", LIMIT);
    assert!(serving.running.stderr().contains("Ctrl-C again ends them at once"));
    until("nobody to listen", LIMIT, || TcpStream::connect(&serving.address).is_err());
    // It goes on, until somebody does not want to wait.
    let mut more = [0; 64];
    stream.read_exact(&mut more).expect("more of it");
    serving.running.signal(Signal::INT);
    let said = rest(&mut stream);
    let events: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let [.., error, done] = events[..] else { panic!("{said}") };
    assert_eq!(done, "[DONE]", "{said}");
    let error: Value = serde_json::from_str(error).expect("JSON");
    assert!(error["error"]["message"].as_str().expect("text").contains("shutting down"), "{error}");
    let said = rest(&mut whole);
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    let refused: Value =
        serde_json::from_str(said.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert_eq!(refused["error"]["type"], "server_error", "{refused}");
    let finished = serving.running.finish(LIMIT).success();
    let told = finished.stderr;
    let is_ended = |why| told.contains(&format!("ended 2 answers early: {why}"));
    let by_signal = is_ended("Ctrl-C again");
    assert!(by_signal || is_ended("they took too long"), "{told}");
    by_signal
}

#[test]
fn where_to_listen_may_be_a_port_and_what_cannot_be_is_said() {
    let golden = golden("llama");
    let (master, model) = (Master::alone(), master::path(&golden.path));
    let mut running = master.start(&["serve", &model, "--listen", "0"]);
    running.wait_for("listening on http://127.0.0.1:", LIMIT);
    let said = running.stdout();
    let port = said.trim().rsplit_once(':').expect("a port").1;
    let refusal = |listen: &str| master.run(&["serve", &model, "--listen", listen]).refusal();
    let said = refusal(&format!(":{port}"));
    assert!(said.contains(&format!("127.0.0.1:{port} for this machine alone")), "{said}");
    let said = refusal(port);
    assert!(said.contains("listens there already") && said.contains("another port"), "{said}");
    if cfg!(target_os = "linux") {
        let holder = format!("cake-master (process {})", running.pid());
        assert!(said.contains(&holder), "{said}");
    }
    assert!(refusal("localhost").contains("HOST:PORT, such as 127.0.0.1:8080"));
}

#[test]
fn programs_made_for_ollama_have_an_address_of_their_own() {
    let golden = golden("llama");
    let (master, model) = (Master::alone(), master::path(&golden.path));
    let serve = ["serve", &model, "--listen", "0"];
    let mut serving = Serving::start(&mut master.command(&[&serve[..], &["--ollama=0"]].concat()));
    let said = serving.running.stderr();
    let told =
        said.lines().find_map(|line| line.split_once("made for Ollama are answered at http://"));
    let address = told.expect("it says where").1.to_owned();
    for address in [serving.address.clone(), address.clone()] {
        serving.address = address;
        let answer = serving.get("/api/tags", "");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(":latest"), "{answer}");
    }
    let taken = format!("--ollama={address}");
    let said = master.run(&[&serve[..], &[&taken]].concat()).refusal();
    let other = said.contains("as with --ollama=127.0.0.1:");
    assert!(said.contains("listens there already") && other, "{said}");
    let said = master.run(&[&serve[..], &["--ollama=here"]].concat()).refusal();
    assert!(said.contains("--ollama") && said.contains("HOST:PORT"), "{said}");
    serving.running.signal(Signal::INT);
    serving.running.finish(LIMIT).success();
}
