//! `cake-master demo`: three worker processes on this machine, a model too big for each, one answer.
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Checkpoint, Scheme};
use cake_engine::{DeviceKind, SamplingOptions};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, block_in_place};

use super::out::{self, Tell};
use super::run::Writer;
use super::told::Words;
use super::{Error, announce, report};
use crate::cluster::Whereabouts;
use crate::deployment::facts::PushReport;
use crate::deployment::{PlanRequest, Prepared, prepare};
use crate::generate::Options;
use crate::membership::Membership;
use crate::model::Model;
use crate::scheduler::Generator;
use crate::sizing::Promise;
use crate::state::State;
use crate::text::{Message, Text};

/// The model that ships inside: file name and content.
const MODEL: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../../demo-model/config.json")),
    ("generation_config.json", include_bytes!("../../demo-model/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../demo-model/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../demo-model/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../demo-model/chat_template.jinja")),
    ("model.safetensors", include_bytes!("../../demo-model/model.safetensors")),
];
/// How long somebody may go on writing after an interruption: about as long as a digest takes.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// The workers, and how many layers each has room for: none for all twelve.
const WORKERS: &[(&str, usize)] = &[("phone", 4), ("tablet", 5), ("laptop", 5)];
const CONTEXT: usize = 512;
const MAX_TOKENS: usize = 200;
/// How long a worker process may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// What is kept of a worker's log, to be told if the demo fails.
const LAST_BYTES: usize = 8 << 10;
const LAST_LINES: usize = 8;

/// Arguments of `demo`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// What to ask.
    #[arg(default_value = "Tell me a story about an owl.")]
    question: String,
}

/// The demo's temporary files. When they are dropped by an interruption, a thread or a worker may be about
/// to write one more, which makes removing fail: then it is tried again.
struct Home(TempDir);

impl Home {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let begun = Instant::now();
        while std::fs::remove_dir_all(self.path()).is_err()
            && self.path().exists()
            && begun.elapsed() < LAST_WRITES
        {
            std::thread::sleep(LAST_WRITES / 50);
        }
    }
}

impl Args {
    /// Starts the workers, answers, tells what each held, and leaves nothing behind.
    pub(super) async fn run(self) -> Result<(), Error> {
        let started = Instant::now();
        let home = TempDir::with_prefix("cake-demo-").map_err(|source| Error::File {
            action: "write",
            path: std::env::temp_dir(),
            source,
        })?;
        let home = Home(home);
        let model = unpack(home.path())?;
        let name = model.display().to_string();
        let checkpoint = block_in_place(|| Checkpoint::open(&name))?;
        out::line(format_args!(
            "The model: {} layers, {}. No worker below has room for all of it.",
            checkpoint.config.layers.len(),
            format_bytes(checkpoint.total_bytes())
        ))?;
        let mut workers = start_workers(home.path(), checkpoint).await?;
        let result = over(&workers, home.path(), &name, &self.question, started).await;
        if result.is_err() {
            workers.iter_mut().for_each(DemoWorker::tell_end);
        }
        for worker in workers {
            worker.stop().await;
        }
        result
    }
}

/// Plans, pushes and answers over the workers, then tells what each held.
async fn over(
    workers: &[DemoWorker],
    home: &Path,
    model: &str,
    question: &str,
    started: Instant,
) -> Result<(), Error> {
    let state = State::at(home.join("state"))?; // A person's own state has no use for any of this.
    let addresses = workers.iter().map(|worker| worker.address.clone());
    // On this machine alone, and nobody's members.
    let cluster = Whereabouts::new(Membership::default(), addresses.collect(), false);
    let prepared = prepare(state, model, &cluster, &request(), Arc::new(Words::loud())).await?;
    out::line("")?;
    let mut pushed = announce::announce_and_push(&prepared, Tell::Output).await?;
    answer(question, &prepared, &mut pushed, started).await?;
    let peaks = prepared.release().await;
    out::line("")?;
    peaks.into_iter().try_for_each(|(stage, peak)| {
        out::line(format_args!(
            "{} held layers {}, offered {}, peaked at {}",
            stage.device,
            stage.layers,
            format_bytes(stage.memory.budget),
            format_bytes(peak)
        ))
    })
}

async fn answer(
    question: &str,
    prepared: &Prepared,
    pushed: &mut PushReport,
    started: Instant,
) -> Result<(), Error> {
    let checkpoint = &prepared.model.checkpoint;
    let text = block_in_place(|| Text::of(&checkpoint.texts))?;
    let prompt = text.encode_chat(&[Message::new("user", question)])?.ids;
    let (pipeline, ends) = prepared.load(pushed).await?;
    let options = Options {
        sampling: SamplingOptions::default(),
        max_tokens: MAX_TOKENS,
        stop_ids: checkpoint.stop_token_ids().into_iter().collect(),
        chunk: prepared.chunk(),
        context: prepared.promise().context,
        keep_prompt_logits: false,
    };
    out::line(format_args!("\n> {question}\n"))?;
    let mut writer = Writer::new(&text, &[], true);
    let mut first_token = None;
    let generator = Generator { pipeline: &pipeline, ends: &ends, promise: prepared.promise() };
    let answer = generator
        .generate(&prompt, &options, |id| {
            first_token.get_or_insert_with(|| started.elapsed());
            writer.token(id)
        })
        .await?;
    writer.finish()?;
    let first_token = first_token.unwrap_or_else(|| started.elapsed());
    out::line(format_args!(
        "\n\n{} tokens at {:.0} tok/s; the first came {} after the start of this demo",
        answer.output_ids.len(),
        answer.timing.decode_tokens_per_second,
        report::duration(first_token.as_secs_f64())
    ))
}

/// Writes the embedded model below `home`.
pub(super) fn unpack(home: &Path) -> Result<PathBuf, Error> {
    let directory = home.join("crumb");
    let write = || {
        std::fs::create_dir_all(&directory)?;
        MODEL.iter().try_for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes))
    };
    write().map_err(|source| Error::File { action: "write", path: directory.clone(), source })?;
    Ok(directory)
}

fn request() -> PlanRequest {
    PlanRequest { context: Some(CONTEXT), predict: true, ..PlanRequest::default() }
}

/// A worker process of the demo; killed when dropped.
struct DemoWorker {
    name: String,
    child: Child,
    address: String,
    said: LastWords,
}

impl DemoWorker {
    /// Ends the process by closing its standard input, as a parent's death would.
    async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(Duration::from_secs(3), self.child.wait()).await.is_err() {
            self.child.kill().await.ok();
        }
    }

    /// Tells what the worker said last if it has ended: that explains a failure.
    fn tell_end(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            let (name, said) = (&self.name, self.said.text());
            out::note(format_args!("worker {name:?} ended with {status}: {said}"));
        }
    }
}

/// The end of what a process writes to a pipe. A task reads it all, so that the process never waits.
struct LastWords {
    text: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>, // Ends with the process, which closes the pipe.
}

impl LastWords {
    fn of(mut pipe: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = text.clone();
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; LAST_BYTES];
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                let mut text = lock(&shared);
                text.extend_from_slice(&buffer[..count]);
                let surplus = text.len().saturating_sub(LAST_BYTES);
                text.drain(..surplus);
            }
        });
        Self { text, reading }
    }

    /// The last lines so far.
    fn text(&self) -> String {
        let text = lock(&self.text);
        let said = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// The last lines of a process that has ended.
    async fn whole(mut self) -> String {
        tokio::time::timeout(Duration::from_secs(1), &mut self.reading).await.ok();
        self.text()
    }
}

/// Critical sections cannot leave the bytes half changed: a poisoned lock is still whole.
fn lock(text: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    text.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

async fn start_workers(home: &Path, checkpoint: Checkpoint) -> Result<Vec<DemoWorker>, Error> {
    let promise = request().promise(&checkpoint)?;
    let model = Model::new(Arc::new(checkpoint), Scheme::AsStored);
    let mut workers = Vec::new();
    for (name, layers) in WORKERS {
        let budget = room_for(*layers, &model, &promise);
        let worker = start_worker(home, name, budget).await?;
        out::line(format_args!(
            "started worker {name:<7} pid {:<7} {} offering {}",
            worker.child.id().unwrap_or(0),
            worker.address,
            format_bytes(budget)
        ))?;
        workers.push(worker);
    }
    Ok(workers)
}

/// The budget that holds this many layers and not one more.
fn room_for(layers: usize, model: &Model, promise: &Promise) -> u64 {
    let config = &model.checkpoint.config;
    let first = &config.layers[..1]; // All are alike.
    let kv = cake_engine::kv_bytes(first, CONTEXT, promise.parallel, promise.kv);
    let state = cake_engine::state_bytes(first, promise.state_slots);
    let layer = model.blob_bytes(0) + kv + state + cake_engine::copied_bytes(first);
    let device = DeviceKind::from_env().unwrap_or_default();
    let scratch = cake_stage::stage_scratch_bytes(device, config, promise.max_rows(), CONTEXT, 1);
    cake_stage::OVERHEAD_BYTES + scratch + layer * layers as u64 + layer / 2
}

/// This program again, as a worker on a port that the system chooses.
async fn start_worker(home: &Path, name: &str, budget: u64) -> Result<DemoWorker, Error> {
    let failed = |reason: String| Error::DemoWorker { name: name.to_owned(), reason };
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let directory = home.join(name);
    std::fs::create_dir_all(&directory).map_err(|error| failed(error.to_string()))?;
    let mut child = Command::new(program)
        .args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--exit-with-parent"])
        .args(["--name", name, "--memory", &budget.to_string(), "--store"])
        .arg(directory.join("store"))
        .current_dir(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("it has no output".to_owned()));
    };
    let said = LastWords::of(stderr);
    let mut line = String::new();
    let mut reader = BufReader::new(stdout);
    let read = tokio::time::timeout(START_TIMEOUT, reader.read_line(&mut line)).await;
    let address = line.trim().strip_prefix("listening on ").map(str::to_owned);
    match (read, address) {
        (Ok(Ok(_)), Some(address)) => {
            Ok(DemoWorker { name: name.to_owned(), child, address, said })
        }
        _ => {
            child.kill().await.ok();
            let said = said.whole().await;
            Err(failed(if said.is_empty() { "it did not listen".to_owned() } else { said }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_talkative_worker_never_waits_and_its_last_lines_are_kept() {
        let (mut worker, pipe) = tokio::io::duplex(1024);
        let said = LastWords::of(pipe);
        let write = async {
            for number in 0..100_000 {
                worker.write_all(format!("line {number}\n").as_bytes()).await.expect("it is read");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), write).await.expect("never waits for long");
        drop(worker);
        let text = said.whole().await;
        assert_eq!(text.lines().count(), LAST_LINES);
        assert!(text.ends_with("\nline 99999"), "{text}");
    }
}
