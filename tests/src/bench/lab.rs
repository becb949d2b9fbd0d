//! Where measurements happen: the models, and room on a real disk.
use std::path::{Path, PathBuf};

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

/// The directory for everything large, and what is known of the machine.
#[derive(Debug)]
pub(crate) struct Lab {
    directory: PathBuf,
    zeros: fill::Zeros,
    peers: Option<Peers>,
    before: Option<PathBuf>,
    rounds: usize,
}

impl Lab {
    /// Uses `directory`, which is made if it is not there; if not given, one beside the programs
    /// under measurement. These are built first, so that they are never stale.
    pub(crate) fn open(
        directory: Option<PathBuf>,
        peers: Option<PathBuf>,
        before: Option<PathBuf>,
        rounds: usize,
    ) -> Result<Lab> {
        let beside = programs().master.parent().context("a program lies in a directory")?;
        let directory = directory.unwrap_or_else(|| beside.join("bench-models"));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = directory.canonicalize()?;
        let (zeros, peers) = (fill::Zeros::new(&directory)?, Peers::at(peers));
        Ok(Lab { directory, zeros, peers, before, rounds })
    }

    /// Where everything large lies.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The programs of an earlier version to compare with, if there are any.
    pub(crate) fn before(&self) -> Option<&Path> {
        self.before.as_deref()
    }

    /// Turns of everybody in comparisons with other systems.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
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
