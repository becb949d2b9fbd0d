//! Commands that read a whole checkpoint, or write one anew: what they share. One file per command.
pub(super) mod convert;
pub(super) mod diff;
pub(super) mod merge;
mod progress;
pub(super) mod split;
pub(super) mod verify;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cake_checkpoint::units::{UnitError, format_bytes, format_rate, parse_bytes};
use cake_transform::{Job, Options, Outcome, Source, Target};
use serde::Serialize;

pub(super) use self::progress::Progress;
use super::ctrl_c::Interrupts;
use super::report::{self, duration};
use super::{Error, out};

/// How many threads there are at most where nobody asks for more: each has some MiB of buffers.
const MOST_THREADS: usize = 16;
/// How many may be asked for.
const MOST_ASKED: u64 = 64;

/// How the output is written.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct WriteArgs {
    /// Replace the file if it is there already. A directory is never replaced, unless it is empty.
    #[arg(long)]
    force: bool,
    /// How many threads read, encode and write, 64 at most; each needs some 5 MiB of memory. Default: one for each processor,
    /// 16 at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_ASKED))]
    threads: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What was written.
#[derive(Debug, Serialize)]
struct Written<'a> {
    out: &'a Path,
    files: usize,
    bytes: u64,
    /// Of these, how many an earlier run had written.
    resumed_bytes: u64,
    seconds: f64,
}

/// Opens what is to be written anew, and says what is odd about it.
pub(super) fn open(model: &str) -> Result<Source, Error> {
    cake_platform::raise_open_files(); // A large model has a thousand files.
    let source = Source::open(model)?;
    for warning in &source.warnings {
        out::note(format_args!("warning: {warning}"));
    }
    Ok(source)
}

/// A file if it is called like one of safetensors, else a directory.
pub(super) fn file_or_directory(path: PathBuf) -> Target {
    let is_file = path.extension().is_some_and(|extension| extension == "safetensors");
    if is_file && !path.is_dir() { Target::File(path) } else { Target::Directory(path) }
}

impl WriteArgs {
    /// Refuses to write where something is in the way.
    pub(super) fn check(&self, job: &Job) -> Result<(), Error> {
        Ok(job.check_target(self.force)?)
    }

    /// Runs the job to its end or to an interrupt, and tells how far it is and what was written.
    pub(super) async fn write(&self, job: Job, interrupts: Interrupts) -> Result<(), Error> {
        let job = Arc::new(job);
        let options = Options { force: self.force, threads: threads(self.threads) };
        let (started, running) = (Instant::now(), job.clone());
        let run = move |progress: &Progress| running.run(options, progress);
        let path = job.target.path();
        let outcome = watched(path, "written", self.json, interrupts, run).await??;
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let Outcome { bytes, resumed: resumed_bytes } = outcome;
            let files = job.outputs.len();
            return report::print_json(&Written {
                out: path,
                files,
                bytes,
                resumed_bytes,
                seconds,
            });
        }
        out::line(sentence(path, outcome, seconds))
    }
}

/// Does what takes long on a thread of its own, to its end or to an interrupt, and draws how far it is unless `quiet`.
/// `done`: what happens to the bytes that progress counts, such as "read".
pub(super) async fn watched<T: Send + 'static>(
    path: &Path,
    done: &'static str,
    quiet: bool,
    mut interrupts: Interrupts,
    work: impl FnOnce(&Progress) -> T + Send + 'static,
) -> Result<T, Error> {
    let progress = Arc::new(Progress::default());
    let watching = progress.clone();
    let mut working = tokio::task::spawn_blocking(move || work(&watching));
    let drawing = (!quiet).then(|| tokio::spawn(progress::draw(progress.clone(), done)));
    let outcome = tokio::select! {
        outcome = &mut working => outcome,
        () = interrupts.next() => {
            progress.cancel();
            working.await // A few pieces of some MiB later.
        }
    };
    progress.end();
    if let Some(drawing) = drawing {
        drawing.await.ok();
    }
    outcome.map_err(|_| Error::Task { path: path.to_owned() })
}

/// Reads a size such as `5GB`.
fn size(text: &str) -> Result<u64, UnitError> {
    parse_bytes(text)
}

/// As many threads as were asked for.
pub(super) fn threads(asked: Option<u64>) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    asked.map_or(processors.min(MOST_THREADS), |asked| asked as usize)
}

fn sentence(path: &Path, outcome: Outcome, seconds: f64) -> String {
    let Outcome { bytes, resumed } = outcome;
    let rate = format_rate((bytes - resumed) as f64 / seconds.max(1e-9));
    let earlier = match resumed {
        0 => String::new(),
        _ => format!(", {} of it earlier", format_bytes(resumed)),
    };
    let (path, bytes, time) = (path.display(), format_bytes(bytes), duration(seconds));
    format!("wrote {path} ({bytes}{earlier}) in {time} ({rate})")
}
