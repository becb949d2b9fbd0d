//! `cake-master` with a state of its own.
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::programs::environment;
use crate::{Finished, Golden, Host, Running, TestWorker, process, programs};

/// A person's workstation: where `cake-master` runs and what it remembers between runs.
#[derive(Debug)]
pub struct Master {
    state: Arc<TempDir>,
    addresses: Vec<String>,
    deadline: Duration,
    cpu: Option<String>,
    host: Option<Host>,
}

/// Which worker shall hold which layers (half-open).
pub type Placement<'a> = [(&'a str, usize, usize)];

impl Default for Master {
    fn default() -> Self {
        Self::alone()
    }
}

impl Master {
    /// A master without workers.
    pub fn alone() -> Self {
        let state = TempDir::with_prefix("cake-state-").expect("there is a temporary folder");
        let state = Arc::new(state);
        Self { state, addresses: Vec::new(), deadline: process::DEADLINE, cpu: None, host: None }
    }

    /// A master that is told of these workers.
    pub fn over<'a>(workers: impl IntoIterator<Item = &'a TestWorker>) -> Self {
        Self::at(workers.into_iter().map(|worker| worker.address.clone()))
    }

    /// A master that is told these addresses.
    pub fn at(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Self { addresses, ..Self::alone() }
    }

    /// The same state, other workers.
    pub fn now_at(&mut self, addresses: impl IntoIterator<Item = impl Into<String>>) {
        self.addresses = addresses.into_iter().map(Into::into).collect();
    }

    /// Gives every command this long.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Gives every command these instructions, as `CAKE_CPU` names them.
    pub fn cpu(mut self, name: &str) -> Self {
        self.cpu = Some(name.to_owned());
        self
    }

    /// Runs on this host from now on.
    pub fn now_on(&mut self, host: &Host) {
        self.host = Some(host.clone());
    }

    /// Where it listens: on its host's address, or on loopback.
    pub fn ip(&self) -> &str {
        self.host.as_ref().map_or("127.0.0.1", |host| &host.ip)
    }

    /// Where it keeps its state.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// `cake-master ARGS`, without workers' addresses, with an environment of its own.
    pub fn bare(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&programs().master);
        command
            .args(args)
            .current_dir(self.state.path())
            .env("CAKE_STATE", self.state.path())
            .env("RUST_BACKTRACE", "1")
            .envs(environment());
        for name in
            ["CAKE_WORKERS", "CAKE_CONFIG", "CAKE_LOG", "CAKE_DEVICE", "HF_HOME", "HF_HUB_CACHE"]
        {
            command.env_remove(name);
        }
        // Where nothing is: what a person keeps here, or Ollama's service, is at hand in no test.
        command.env("OLLAMA_MODELS", self.state.path().join("ollama"));
        command.envs(self.cpu.iter().map(|name| ("CAKE_CPU", name)));
        match &self.host {
            Some(host) => host.command(&command),
            None => command,
        }
    }

    /// `cake-master ARGS --worker … --worker …`.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        for address in &self.addresses {
            command.args(["--worker", address]);
        }
        command
    }

    /// Starts a command.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args)).keeping(self.state.clone())
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it takes longer than the deadline.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Finished {
        self.start(args).finish(self.deadline)
    }

    /// Runs a command that prints JSON.
    ///
    /// # Panics
    /// If it fails, takes too long, or prints something else.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        self.run(args).json()
    }

    /// `push --json` with a forced placement.
    ///
    /// # Panics
    /// As [`Master::json`].
    #[track_caller]
    pub fn push(&self, model: &Path, place: &Placement<'_>) -> Value {
        self.json(&strs(&[vec!["push".into(), path(model), "--json".into()], pins(place)].concat()))
    }

    /// The greedy answer to a golden prompt, with more arguments.
    ///
    /// # Panics
    /// As [`Master::json`].
    #[track_caller]
    pub fn answer(&self, golden: &Golden, place: &Placement<'_>, more: &[&str]) -> Answer {
        self.answer_of(&golden.path, &golden.prompt_ids, golden.greedy_ids.len(), place, more)
    }

    /// The greedy answer of any model to a prompt of ids.
    ///
    /// # Panics
    /// As [`Master::json`].
    #[track_caller]
    pub fn answer_of(
        &self,
        model: &Path,
        prompt_ids: &[u32],
        tokens: usize,
        place: &Placement<'_>,
        more: &[&str],
    ) -> Answer {
        let args = [answer_args(model, prompt_ids, tokens), pins(place), owned(more)].concat();
        Answer::of(self.json(&strs(&args)))
    }
}

/// Arguments of a greedy `run --json` in exact numerics; those given later win.
pub fn answer_args(model: &Path, prompt_ids: &[u32], tokens: usize) -> Vec<String> {
    let ids: Vec<String> = prompt_ids.iter().map(u32::to_string).collect();
    let (ids, tokens) = (ids.join(","), tokens.to_string());
    let mut args = vec!["run".to_owned(), path(model)];
    args.extend(owned(&["--prompt-ids", &ids, "--max-tokens", &tokens, "--temperature", "0"]));
    args.extend(owned(&["--ignore-eos", "--numerics", "exact", "--json"]));
    args
}

/// What `run --json` said, the parts that scenarios compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The answer's ids.
    pub output_ids: Vec<u32>,
    /// Bits of the log-probability of each.
    pub logprob_bits: Vec<u32>,
    /// Worker, layers and whether it hands on directly, for each stage.
    pub stages: Vec<(String, String, bool)>,
    /// Blob bytes sent.
    pub pushed_bytes: u64,
    /// Blob bytes that were there.
    pub reused_bytes: u64,
}

impl Answer {
    fn of(said: Value) -> Self {
        let list =
            |name: &str| said[name].as_array().unwrap_or_else(|| panic!("no {name}: {said}"));
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {said}"));
        // Printed with as many digits as tell every f32 from its neighbours.
        let bits = |value: &Value| {
            let text = value.to_string();
            text.parse::<f32>().unwrap_or_else(|_| panic!("no f32: {text}")).to_bits()
        };
        let stage = |stage: &Value| {
            let text = |name: &str| stage[name].as_str().expect("a text").to_owned();
            (text("worker"), text("layers"), stage["direct"].as_bool().expect("true or false"))
        };
        Self {
            output_ids: list("output_ids").iter().map(|id| number(id) as u32).collect(),
            logprob_bits: list("logprobs").iter().map(bits).collect(),
            stages: list("stages").iter().map(stage).collect(),
            pushed_bytes: number(&said["pushed_bytes"]),
            reused_bytes: number(&said["reused_bytes"]),
        }
    }
}

/// `--place` arguments.
pub fn pins(place: &Placement<'_>) -> Vec<String> {
    let pin = |(name, start, end): &(&str, usize, usize)| {
        ["--place".to_owned(), format!("{name}={start}..{end}")]
    };
    place.iter().flat_map(pin).collect()
}

/// A path as an argument.
///
/// # Panics
/// If it is not UTF-8.
pub fn path(path: &Path) -> String {
    path.to_str().expect("test paths are UTF-8").to_owned()
}

/// Borrowed arguments.
pub fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}
