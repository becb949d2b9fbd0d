//! A service under attack: what it takes of memory, how soon it gives that back, and what others notice.
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::format_bytes;
use cake_tests::process::family_bytes;
use cake_tests::streams::Over;
use cake_tests::template::{HOSTILE, WISHES};
use cake_tests::{Master, Server, master};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::cluster::{NAMES, pinned_with};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::rates::median;
use super::table::{Measured, Table};

pub(super) const BAR: &str = "≤ 300 MiB; ≤ 1.10; ≤ 100 ms; ≥ 0.5";
const MOST_MORE: u64 = 300 << 20;
const MOST_AFTER: f64 = 1.1;
const MOST_HEALTH: f64 = 0.1;
const LEAST_RATE: f64 = 0.5;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const CONTEXT: usize = 1024;
const LONG_ANSWER: usize = CONTEXT - 64;
/// A body as large as may be, but for a MiB.
const LARGE: usize = 15 << 20;
/// How long the attack lasts.
const LASTS: Duration = Duration::from_secs(60);
/// Between two attacks of the same attacker.
const BREATH: Duration = Duration::from_millis(500);
/// Longest that an attacker waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who attacks, all at once and again and again.
#[derive(Clone, Copy, Debug)]
struct Attack {
    unfinished_bodies: usize,
    idle: usize,
    large: usize,
    schemas: usize,
    /// Of messages on which the model's template does what it should not, in all kinds in turn.
    templates: usize,
}

impl Attack {
    const WHOLE: Self =
        Self { unfinished_bodies: 60, idle: 2000, large: 8, schemas: 100, templates: 20 };
}

/// What was seen from outside so far.
#[derive(Debug)]
struct Seen {
    /// When the attack began.
    begun: Instant,
    idle_bytes: u64,
    peak_bytes: AtomicU64,
    health_seconds: Mutex<Vec<f64>>,
    /// Questions for `/health` without an answer.
    unanswered: AtomicU64,
    /// Attacks that were made.
    attacks: AtomicU64,
}

/// The 1B shape over two workers, attacked for a minute.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = hostile_model(lab)?;
    files::warm(&model)?;
    let (_home, workers) = pinned_with(lab, &[])?;
    let pins = master::pins(&[(NAMES[0], 0, CUT), (NAMES[1], CUT, one_b().layers)]);
    let context = CONTEXT.to_string();
    let mut args = vec!["--context", &context, "--parallel", "4"];
    args.extend(pins.iter().map(String::as_str));
    let mut server = Server::start(&Master::over(&workers), &model, &args);
    let pid = server.child().id();
    let begun = Instant::now();
    let rate_alone = stream(&server, &|_| begun.elapsed() < LASTS / 4)?;
    let lasts = |_, seen: &Seen| seen.begun.elapsed() < LASTS;
    let (seen, rate) = attacked(&server, pid, Attack::WHOLE, &lasts)?;
    std::thread::sleep(LASTS);
    let after_bytes = resident(pid)?;
    let idle_bytes = seen.idle_bytes;
    let (unanswered, attacks) = (seen.unanswered.into_inner(), seen.attacks.into_inner());
    let more = seen.peak_bytes.into_inner().saturating_sub(idle_bytes);
    let words =
        format!("{} above {} ({attacks} attacks)", format_bytes(more), format_bytes(idle_bytes));
    let what = "hostile: memory (VmRSS) of the master and its children at the peak, above idle";
    table.at_most(what, Measured::new(more as f64, words), MOST_MORE as f64, "≤ 300 MiB");
    let ratio = after_bytes as f64 / idle_bytes as f64;
    let words = format!("{}, {} idle", format_bytes(after_bytes), format_bytes(idle_bytes));
    let what = "hostile: the same a minute after ÷ idle";
    table.at_most(what, Measured::ratio(ratio, &words), MOST_AFTER, "≤ 1.10");
    let health_seconds = seen.health_seconds.into_inner().expect("nobody panics");
    let (asked, health) = (health_seconds.len(), median(health_seconds));
    let words = format!("{:.1} ms ({asked} times, {unanswered} without an answer)", health * 1e3);
    let met = asked > 10 && health <= MOST_HEALTH && unanswered * 10 <= asked as u64;
    let what = "hostile: GET /health meanwhile, the median";
    table.judged(what, Measured::new(health, words), "≤ 100 ms", met);
    let ratio = rate / rate_alone;
    let words = format!("{rate:.1} tok/s, {rate_alone:.1} alone: {ratio:.2}");
    let what = "hostile: a well-behaved stream's rate ÷ its rate alone";
    table.judged(what, Measured::new(ratio, words), "≥ 0.5", ratio >= LEAST_RATE);
    Ok(())
}

/// The 1B model with a template that misbehaves when it is told to; its weights are links to the other one's.
fn hostile_model(lab: &Lab) -> Result<PathBuf> {
    let (model, scratch) = (lab.model(ONE_B, &one_b())?, lab.scratch()?);
    // Beside the other one, so that links can be made; kept for the next time, as the other one is.
    let hostile = model.with_file_name(format!("{ONE_B}-hostile"));
    if hostile.exists() {
        std::fs::remove_dir_all(&hostile)?;
    }
    for entry in std::fs::read_dir(&model)? {
        let entry = entry?;
        let link = scratch.path().join(entry.file_name());
        std::fs::hard_link(entry.path(), link).context("the model's files can be linked")?;
    }
    let path = scratch.path().join("chat_template.jinja");
    if path.exists() {
        std::fs::remove_file(&path)?; // A link: the other model keeps its own.
    }
    std::fs::write(path, HOSTILE)?;
    std::fs::rename(scratch.keep(), &hostile)?;
    Ok(hostile)
}

/// What a server and its children have in memory now.
fn resident(pid: u32) -> Result<u64> {
    family_bytes(pid, "VmRSS:").context("the master has ended")
}

/// Attacks `server`, whose process is `pid`, and looks at it, for as long as `goes_on` after so many tokens of a
/// well-behaved stream and what was seen. Returns that, and the tokens per second of the stream.
fn attacked(
    server: &Server,
    pid: u32,
    attack: Attack,
    goes_on: &dyn Fn(usize, &Seen) -> bool,
) -> Result<(Seen, f64)> {
    allow_files()?;
    // Whatever is done once is done now.
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 2 });
    server.post(CHAT, &chat).good();
    std::thread::sleep(BREATH);
    let seen = Seen {
        begun: Instant::now(),
        idle_bytes: resident(pid)?,
        peak_bytes: AtomicU64::new(0),
        health_seconds: Mutex::new(Vec::new()),
        unanswered: AtomicU64::new(0),
        attacks: AtomicU64::new(0),
    };
    let over = AtomicBool::new(false);
    let address = server.url.trim_start_matches("http://");
    let again = |attack: &dyn Fn()| {
        while !over.load(Ordering::Relaxed) {
            attack();
            seen.attacks.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(BREATH);
        }
    };
    let large = json!({ "prompt": "many words ".repeat(LARGE / 11), "max_tokens": 1 }).to_string();
    let wishing = |wish: &str| {
        json!({ "messages": [{ "role": "user", "content": wish }], "max_tokens": 1 }).to_string()
    };
    let templates: Vec<String> =
        WISHES.iter().cycle().take(attack.templates).map(|wish| wishing(wish)).collect();
    let schemas: Vec<String> =
        (0..attack.schemas).map(|number| schema(number).to_string()).collect();
    let rate = std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..attack.unfinished_bodies {
            scope.spawn(|| again(&|| unfinished_body(address, &over)));
        }
        scope.spawn(|| idle(address, attack.idle, &over));
        for _ in 0..attack.large {
            scope.spawn(|| again(&|| post(address, COMPLETIONS, &large)));
        }
        for body in &schemas {
            let again = &again;
            scope.spawn(move || again(&|| post(address, CHAT, body)));
        }
        for body in &templates {
            let again = &again;
            scope.spawn(move || again(&|| post(address, CHAT, body)));
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let bytes = resident(pid).unwrap_or(0);
                seen.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                match get_health(address) {
                    Some(()) => {
                        let seconds = asked.elapsed().as_secs_f64();
                        seen.health_seconds.lock().expect("nobody panics").push(seconds);
                    }
                    None => {
                        seen.unanswered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        stream(server, &|tokens| goes_on(tokens, &seen))
    })?;
    Ok((seen, rate))
}

/// This program needs a file for each connection.
fn allow_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    ensure!(limit.maximum.is_none_or(|most| most >= 4096), "the limit of open files is {limit:?}");
    Ok(())
}

/// Tokens per second of streams, one after the other, for as long as `goes_on` after so many tokens.
fn stream(server: &Server, goes_on: &dyn Fn(usize) -> bool) -> Result<f64> {
    let (mut tokens, mut seconds) = (0, 0.0);
    while goes_on(tokens) {
        let request = json!({
            "prompt": [11, 12, 13], "max_tokens": LONG_ANSWER, "temperature": 0, "ignore_eos": true,
            "logprobs": 0, "stream": true,
        });
        let mut events = server.stream(COMPLETIONS, &request);
        let mut last = Instant::now();
        while goes_on(tokens) {
            let Some(event) = events.next().filter(|event| event != "[DONE]") else { break };
            ensure!(!event.contains("\"error\""), "the stream ended: {event}");
            // The time of a token is that since the one before, the prompt's for the first.
            let event: Value = serde_json::from_str(&event)?;
            let logprobs = event["choices"][0]["logprobs"]["tokens"].as_array();
            tokens += logprobs.map_or(0, Vec::len);
            seconds += last.elapsed().as_secs_f64();
            last = Instant::now();
        }
    }
    ensure!(tokens > 0, "the stream said no token");
    Ok(f64::from(u32::try_from(tokens)?) / seconds)
}

fn connect(address: &str) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// Sends all of a large body but its last byte, as far as it is taken, and waits.
fn unfinished_body(address: &str, over: &AtomicBool) {
    let Some(mut stream) = connect(address) else { return };
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {LARGE}\r\n\r\n"
    );
    let mut sent = stream.write_all(head.as_bytes()).is_ok();
    stream.set_write_timeout(Some(Duration::from_secs(1))).ok();
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
    let part = vec![b' '; (1 << 20) - 1];
    for _ in 0..LARGE >> 20 {
        sent = sent && stream.write_all(&part).is_ok();
    }
    let is_open = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    };
    let mut answer = [0; 1024];
    while !over.load(Ordering::Relaxed) {
        match stream.read(&mut answer) {
            Ok(1..) => {}
            Ok(0) => return,
            Err(error) if is_open(&error) => {}
            Err(_) => return,
        }
    }
}

/// Keeps so many connections open that say nothing.
fn idle(address: &str, count: usize, over: &AtomicBool) {
    let open = || {
        let stream = connect(address)?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let is_open = |stream: &TcpStream| matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    let mut streams: Vec<TcpStream> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        streams.retain(is_open);
        streams.extend((streams.len()..count).map_while(|_| open()));
        std::thread::sleep(BREATH);
    }
}

/// Sends a request and waits for its answer, whatever that is.
fn post(address: &str, path: &str, body: &str) {
    let Some(mut stream) = connect(address) else { return };
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    // Refused before all of it was sent, it may still be told why.
    if stream.write_all(head.as_bytes()).is_ok() {
        stream.write_all(body.as_bytes()).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    }
}

fn get_health(address: &str) -> Option<()> {
    let mut stream = connect(address)?;
    let head = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(())
}

/// A request that is to be held to a schema made to cost stack, time or memory.
fn schema(number: usize) -> Value {
    let schema = match number % 4 {
        0 => {
            // Each refers to the next one.
            let definitions = (0..250).map(|at| {
                let next = json!({ "$ref": format!("#/$defs/d{}", at + 1) });
                (format!("d{at}"), json!({ "items": next }))
            });
            let mut definitions: serde_json::Map<String, Value> = definitions.collect();
            definitions.insert("d250".to_owned(), json!({ "type": "integer" }));
            json!({ "$ref": "#/$defs/d0", "$defs": definitions })
        }
        1 => json!({ "type": "integer", "multipleOf": 99_999_989 - number }),
        2 => json!({ "type": "array", "minItems": 90_000, "maxItems": 100_000 + number }),
        _ => {
            let nested = |inner: Value, at: usize| json!({ "type": "object", "properties": { format!("p{at}"): inner } });
            (0..60).fold(json!({ "enum": (0..2000).collect::<Vec<_>>() }), nested)
        }
    };
    json!({
        "messages": [{ "role": "user", "content": "Hello" }],
        "max_tokens": 1,
        "response_format": { "type": "json_schema", "json_schema": { "name": "s", "schema": schema } },
    })
}

#[cfg(test)]
mod tests {
    use cake_tests::{demo_model, until};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// In small, all that it counts is there sooner or later, and the attackers come to an end.
    #[test]
    fn a_small_attack_is_seen() {
        let context = CONTEXT.to_string();
        let mut server = Server::start(&Master::alone(), &demo_model(), &["--context", &context]);
        let (pid, idle) = (server.child().id(), 50);
        let attack = Attack { unfinished_bodies: 2, idle, large: 1, schemas: 1, templates: 1 };
        let connections = || server.metric("cake_http_connections").unwrap_or(0.0);
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let attacked = attacked(&server, pid, attack, &|tokens, seen| {
            let answered = seen.health_seconds.lock().expect("nobody panics").len();
            let counted = tokens >= 8 && answered >= 3 && now(&seen.attacks) >= 3;
            // A half of one body that is not finished, at least.
            let held = now(&seen.peak_bytes) > seen.idle_bytes + LARGE as u64 / 2;
            let goes_on = !(counted && held && connections() >= idle as f64);
            assert!(!goes_on || seen.begun.elapsed() < LIMIT, "{tokens} tokens, {seen:?}");
            goes_on
        });
        let (seen, rate) = attacked.expect("measured");
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert_eq!(now(&seen.unanswered), 0, "{seen:?}");
        until("the attackers' connections to end", LIMIT, || connections() <= 2.0);
    }
}
