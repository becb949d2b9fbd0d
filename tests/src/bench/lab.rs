//! Where measurements happen: the models, and room on a real disk.
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::format_bytes;
use cake_tests::model::{self, ModelShape};
use cake_tests::programs;
use tempfile::TempDir;

use super::peers::Peers;
use super::{files, fill};

/// Weights do not matter to what is measured here, only their number and that they stay the same.
const SEED: u64 = 1;
/// Disk that stays free whatever is measured.
const DISK_RESERVE: u64 = 2 << 30;

/// Where to measure, beside what, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory for models and stores, on a real disk. Default: bench-models beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory of llama.cpp and PyTorch to compare with, made by tests/benches/peers.sh. Default: no peers.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Directory of the release programs of an earlier version, to compare these with, in `versions`. Default: none.
    #[arg(long, value_name = "DIR")]
    before: Option<PathBuf>,
    /// Turns of everybody in `engine`, `serve`, `predictions`, `versions` and `files`; medians count.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Begin no round once so many minutes have passed, but each figure's first. Default: all rounds, however long they take.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
}

/// The directory for everything large, and what is known of the machine.
#[derive(Debug)]
pub(crate) struct Lab {
    directory: PathBuf,
    zeros: fill::Zeros,
    peers: Option<Peers>,
    before: Option<PathBuf>,
    rounds: usize,
    /// When no further round is begun.
    end: Option<Instant>,
    /// The fewest rounds that any figure had.
    fewest: Cell<usize>,
}

impl Lab {
    /// Uses the directory of `options`, which is made if it is not there; if not given, one beside the programs
    /// under measurement. These are built first, so that they are never stale.
    pub(crate) fn open(options: Options) -> Result<Lab> {
        let Options { dir: directory, peers, before, rounds, minutes } = options;
        let beside = programs().master.parent().context("a program lies in a directory")?;
        let end = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let directory = directory.unwrap_or_else(|| beside.join("bench-models"));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = directory.canonicalize()?;
        let (zeros, peers) = (fill::Zeros::new(&directory)?, Peers::at(peers));
        Ok(Lab { directory, zeros, peers, before, rounds, end, fewest: Cell::new(rounds) })
    }

    /// Where everything large lies.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The programs of an earlier version to compare with, if there are any.
    pub(crate) fn before(&self) -> Option<&Path> {
        self.before.as_deref()
    }

    /// The rounds of a figure, in which everybody has a turn, counted from 0; each is told as `what`.
    pub(crate) fn rounds<'a>(&'a self, what: &'a str) -> impl Iterator<Item = usize> + 'a {
        (0..self.rounds).take_while(move |&round| {
            let is_over = round > 0 && self.end.is_some_and(|end| Instant::now() >= end);
            if is_over {
                eprintln!("{what}: the time is over after {round} of {} rounds", self.rounds);
                self.fewest.set(self.fewest.get().min(round));
            } else {
                eprintln!("{what}: round {} of {}", round + 1, self.rounds);
            }
            !is_over
        })
    }

    /// The fewest rounds that a figure had up to now.
    pub(crate) fn fewest_rounds(&self) -> usize {
        self.fewest.get()
    }

    /// Other systems to compare with, if they are prepared.
    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// A random-weight model of this shape, made unless an earlier run made it.
    pub(crate) fn model(&self, name: &str, shape: &ModelShape) -> Result<PathBuf> {
        let model = self.directory.join(name);
        if !model.exists() {
            self.need_disk(shape.bytes())?;
            eprintln!("making {} ({}) ...", model.display(), model::describe(shape));
            let unfinished = self.directory.join(format!("{name}.unfinished"));
            if unfinished.exists() {
                std::fs::remove_dir_all(&unfinished)?;
            }
            model::make(&unfinished, shape, SEED)?;
            std::fs::rename(&unfinished, &model)?;
            files::flush();
        }
        Ok(model)
    }

    /// Deletes a model.
    pub(crate) fn delete(&self, model: &Path) -> Result<()> {
        std::fs::remove_dir_all(model).with_context(|| model.display().to_string())
    }

    /// An empty directory on the same disk as the models, gone when dropped.
    pub(crate) fn scratch(&self) -> Result<TempDir> {
        Ok(TempDir::with_prefix_in("scratch-", &self.directory)?)
    }

    /// Has everything written to the disk that waits for it, and memory full of page cache with the
    /// weights in `warm` last, so that nobody pays for what came before.
    pub(crate) fn prepare(&self, warm: &[&Path]) -> Result<()> {
        files::flush();
        self.zeros.fill_memory()?;
        // Twice: what was read once only is the first to make room.
        warm.iter().chain(warm).try_for_each(|weights| files::warm(weights))
    }

    /// Makes sure that so many bytes may be written.
    pub(crate) fn need_disk(&self, bytes: u64) -> Result<()> {
        let free = files::free_disk(&self.directory)?;
        ensure!(
            free >= bytes.saturating_add(DISK_RESERVE),
            "{} has {} of disk free, needs {} and {} to spare",
            self.directory.display(),
            format_bytes(free),
            format_bytes(bytes),
            format_bytes(DISK_RESERVE),
        );
        Ok(())
    }

    /// The machine and its state in one line, for the reader of the figures.
    pub(crate) fn describe(&self) -> String {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
        };
        let kernel = read("/proc/sys/kernel/osrelease");
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        let noise = match compilers() {
            0 => String::new(),
            count => format!("; {count} COMPILERS RUNNING, the figures suffer"),
        };
        format!(
            "{} × {}, {} memory, Linux {}, load {load}{noise}; models in {}",
            std::thread::available_parallelism().map_or(1, usize::from),
            after(&read("/proc/cpuinfo"), "model name"),
            fill::memory_bytes("MemTotal").map_or("unknown".to_owned(), format_bytes),
            kernel.trim(),
            self.directory.display(),
        )
    }
}

/// Compilers at work on this machine.
fn compilers() -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm")).ok();
    processes.flatten().filter_map(name).filter(|name| name.trim() == "rustc").count()
}
