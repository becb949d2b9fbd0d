//! Two workers, a master, and what crosses between them.
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cake_tests::master::path;
use cake_tests::{Cgroup, CountingProxy, Finished, HeldBlobs, Master, Running, TestWorker};
use cake_tests::{ModelShape, WorkerOptions};
use serde_json::Value;
use tempfile::TempDir;

use super::lab::Lab;

/// Names of the workers, in the order of the chain.
pub(crate) const NAMES: [&str; 2] = ["a", "b"];
/// Tokens of context promised in every measurement.
pub(crate) const CONTEXT: usize = 512;
/// Nothing measured here should take longer.
const DEADLINE: Duration = Duration::from_secs(600);
/// More than any stage here needs.
const AMPLE: u64 = 16 << 30;

/// Two workers of one thread each, their stores on the models' disk, and a master that knows them.
#[derive(Debug)]
pub(crate) struct Pair {
    master: Master,
    proxies: Vec<CountingProxy>,
    workers: Vec<TestWorker>,
    _home: TempDir,
}

/// How the master, and each worker the next one, reaches a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// Through a proxy that counts.
    Counted,
    /// As it is.
    Straight,
}

/// Bytes that crossed both proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// From the master (and from the first worker to the second).
    pub(crate) to_workers: u64,
    /// Back.
    pub(crate) to_master: u64,
}

/// A command of a master that ended.
#[derive(Debug)]
pub(crate) struct Run {
    /// What it said, and what the system counted of it.
    pub(crate) finished: Finished,
    /// Wall time.
    pub(crate) seconds: f64,
}

/// Arguments of a command of `cake-master`, made step by step. All print JSON.
#[derive(Clone, Debug)]
pub(crate) struct Ask(Vec<String>);

impl Pair {
    /// Workers that offer more than is needed.
    pub(crate) fn start(lab: &Lab, ways: Ways) -> Result<Pair> {
        Pair::limited(lab, ways, [AMPLE; 2], &[])
    }

    /// Workers that offer so many bytes, each in its control group if there are any.
    pub(crate) fn limited(
        lab: &Lab,
        ways: Ways,
        memory: [u64; 2],
        groups: &[Cgroup],
    ) -> Result<Pair> {
        let home = lab.scratch()?;
        let mut workers = Vec::new();
        for (index, name) in NAMES.iter().enumerate() {
            let directory = home.path().join(name);
            std::fs::create_dir(&directory)?;
            let cgroups = groups.get(index).into_iter().collect();
            let memory = memory[index];
            let directory = Some(directory);
            let options = WorkerOptions { memory, directory, cgroups, ..WorkerOptions::default() };
            workers.push(TestWorker::start(name, options));
        }
        let mut proxies = Vec::new();
        if ways == Ways::Counted {
            proxies.extend(workers.iter().map(|worker| CountingProxy::start(&worker.address)));
        }
        let master = match ways {
            Ways::Counted => Master::at(proxies.iter().map(|proxy| proxy.address.clone())),
            Ways::Straight => Master::over(&workers),
        };
        Ok(Pair { master, proxies, workers, _home: home })
    }

    /// Starts a command with these workers.
    pub(crate) fn begin(&self, ask: &Ask) -> Running {
        self.master.start(&ask.args())
    }

    /// Runs a command with these workers to its end, however it ends.
    pub(crate) fn attempt(&self, ask: &Ask) -> Run {
        let started = Instant::now();
        let finished = self.begin(ask).finish(DEADLINE);
        Run { finished, seconds: started.elapsed().as_secs_f64() }
    }

    /// Runs a command with these workers.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub(crate) fn run(&self, ask: &Ask) -> Result<Run> {
        self.attempt(ask).ok()
    }

    /// What crossed the proxies so far.
    pub(crate) fn wire(&self) -> Wire {
        let sum = |count: fn(&CountingProxy) -> u64| self.proxies.iter().map(count).sum();
        Wire { to_workers: sum(CountingProxy::to_worker), to_master: sum(CountingProxy::to_master) }
    }

    /// Bytes of whole blobs and of beginnings of blobs, on both workers' disks.
    pub(crate) fn stored(&self) -> (u64, u64) {
        let stores = self.workers.iter().map(|worker| HeldBlobs::of(worker.store()));
        stores.fold((0, 0), |(whole, partial), held| {
            (whole + held.whole_bytes(), partial + held.partial_bytes())
        })
    }

    /// A worker's peak of resident memory; `None` if it is gone.
    pub(crate) fn peak(&self, index: usize) -> Option<u64> {
        cake_tests::process::peak_bytes(self.workers[index].pid())
    }
}

impl Wire {
    /// Both ways.
    pub(crate) fn total(self) -> u64 {
        self.to_workers + self.to_master
    }

    /// What crossed after `earlier`.
    pub(crate) fn since(self, earlier: Wire) -> Wire {
        Wire {
            to_workers: self.to_workers - earlier.to_workers,
            to_master: self.to_master - earlier.to_master,
        }
    }
}

impl Run {
    /// Itself, if the command was content.
    ///
    /// # Errors
    /// What it said.
    pub(crate) fn ok(self) -> Result<Run> {
        let finished = &self.finished;
        ensure!(finished.status.success(), "{}: {}", finished.command, finished.stderr.trim());
        Ok(self)
    }

    /// What it printed.
    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.finished.stdout)
            .with_context(|| format!("{} printed no JSON", self.finished.command))
    }
}

impl Ask {
    /// `cake-master COMMAND MODEL`, with the context promised in all measurements.
    pub(crate) fn new(command: &str, model: &Path) -> Ask {
        Ask::within(command, model, CONTEXT)
    }

    /// The same with room for another number of tokens.
    pub(crate) fn within(command: &str, model: &Path, context: usize) -> Ask {
        Ask::of(command, model).and(&["--context", &context.to_string()])
    }

    /// The same of a command that makes room for none.
    pub(crate) fn of(command: &str, model: &Path) -> Ask {
        Ask(vec![command.into(), path(model), "--json".into()])
    }

    /// Layers before `at` to the first worker, the rest of `shape` to the second.
    pub(crate) fn cut(self, at: usize, shape: &ModelShape) -> Ask {
        let [a, b] = NAMES;
        let layers = shape.layers;
        let (first, second) = (format!("{a}=0..{at}"), format!("{b}={at}..{layers}"));
        self.and(&["--place", &first, "--place", &second])
    }

    /// A greedy answer of `tokens` tokens to a prompt of as many ids as asked.
    pub(crate) fn answer(self, prompt: usize, tokens: usize) -> Ask {
        // Any ids do that every model has.
        let ids: Vec<String> =
            (0..prompt).map(|index| (index * 7919 % 32_000).to_string()).collect();
        let (ids, tokens) = (ids.join(","), tokens.to_string());
        let sample = ["--max-tokens", &tokens, "--temperature", "0", "--ignore-eos"];
        self.and(&["--prompt-ids", &ids]).and(&sample)
    }

    /// More arguments.
    pub(crate) fn and(mut self, more: &[&str]) -> Ask {
        self.0.extend(more.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Runs it with a master that knows no worker.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub(crate) fn alone(&self) -> Result<Run> {
        self.with(&Master::alone())
    }

    /// The same with an environment variable set.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub(crate) fn alone_with(&self, variable: &str, value: &str) -> Result<Run> {
        let master = Master::alone();
        let started = Instant::now();
        let running = Running::start(master.command(&self.args()).env(variable, value));
        let finished = running.finish(DEADLINE);
        Run { finished, seconds: started.elapsed().as_secs_f64() }.ok()
    }

    /// Runs it with that master.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub(crate) fn with(&self, master: &Master) -> Result<Run> {
        let started = Instant::now();
        let finished = master.start(&self.args()).finish(DEADLINE);
        Run { finished, seconds: started.elapsed().as_secs_f64() }.ok()
    }

    fn args(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// Two workers of one thread, each on a core of its own, and where their stores are.
pub(super) fn pinned(lab: &Lab) -> Result<(TempDir, Vec<TestWorker>)> {
    pinned_with(lab, &[])
}

/// The same with more arguments.
pub(super) fn pinned_with(lab: &Lab, args: &[String]) -> Result<(TempDir, Vec<TestWorker>)> {
    let home = lab.scratch()?;
    let start = |(core, name): (usize, &&str)| {
        let directory = Some(home.path().join(name));
        let options = WorkerOptions {
            memory: 8 << 30,
            core: Some(core),
            directory,
            args: args.to_vec(),
            ..WorkerOptions::default()
        };
        std::fs::create_dir(home.path().join(name))?;
        Ok(TestWorker::start(name, options))
    };
    let workers = NAMES.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    Ok((home, workers))
}
