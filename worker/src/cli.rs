//! The command line of a worker, shared by `cake-worker` and the master's demo.
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use cake_checkpoint::units::{format_bytes, parse_bytes};
use cake_engine::Weights;
use cake_identity::JoinToken;
use cake_platform::interrupts;
use cake_settings::{ConfigArgs, Program};
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;

use crate::config::{self, Config, DeviceOffer};
use crate::membership;
use crate::reserve::Reserve;
use crate::server::{self, Worker};
use crate::store::cli as store_cli;
use crate::store::{self, Store};
use crate::{DEFAULT_PORT, NOTES};

/// Shown at the end of the help; a test parses each of them.
const EXAMPLES: &str = "Examples:
  cake-worker --listen 0.0.0.0:7117 --memory 3GiB --name tablet
  cake-worker --no-listen --min-battery 30";
const STORE_EXAMPLES: &str = "Examples:
  cake-worker store list
  cake-worker store prune --keep 5GiB";
const CONFIG_EXAMPLES: &str = "Examples:
  cake-worker config
  cake-worker config --json";
const LIST_EXAMPLES: &str = "Examples:
  cake-worker store list
  cake-worker store list --store /data/cake --json";
const PRUNE_EXAMPLES: &str = "Examples:
  cake-worker store prune --keep 5GiB
  cake-worker store prune --store /data/cake";

/// A settings file has one section for a worker, which a master's may stand beside.
pub const SETTINGS: Program =
    Program { name: "cake-worker", own: Some("worker"), shared: &[], others: true };

/// Why a worker's command failed: one sentence for the person who typed it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// It cannot compute with what the environment says.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
    /// The worker cannot start, or stopped.
    #[error(transparent)]
    Server(#[from] server::Error),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Neither an argument nor the environment says where the store is.
    #[error("no place for the store: give --store DIR, or set HOME")]
    NoPlace,
    /// Traces cannot be sent.
    #[error(transparent)]
    Telemetry(#[from] cake_telemetry::Error),
    /// The settings file cannot be used.
    #[error(transparent)]
    Settings(#[from] cake_settings::Error),
    /// Standard output takes nothing more.
    #[error("cannot write to standard output: {source}")]
    Output {
        /// What the system said.
        source: std::io::Error,
    },
    /// The runtime could not start.
    #[error("cannot start: {0}")]
    Start(#[source] std::io::Error),
}

/// Runs some layers of a model for a cake-master on the network.
#[derive(Debug, Parser)]
#[command(name = "cake-worker", version, about, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten, next_help_heading = "Logs and traces")]
    telemetry: cake_telemetry::Options,
    #[command(flatten)]
    config: ConfigArgs,
    /// Say more on standard error: -v what happens here, -vv everything. Without it: who holds this worker, what it
    /// loaded and how many tokens it computed, and what went wrong.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look at or clean the blobs kept on this device.
    #[command(after_help = STORE_EXAMPLES)]
    Store(StoreArgs),
    /// Show all settings of a worker, and where each comes from.
    #[command(after_help = CONFIG_EXAMPLES)]
    Config {
        /// Print JSON.
        #[arg(long, help_heading = "Output")]
        json: bool,
    },
}

/// Arguments of a serving worker.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Address to listen on (HOST:PORT); port 0 lets the system choose.
    #[arg(long, value_name = "ADDR", default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"), help_heading = "Network")]
    listen: String,
    /// Do not listen: this worker opens connections to its master, which calls on them, as for a device that
    /// nobody can connect to. A worker that its master cannot reach does that, too, without being told.
    #[arg(long, conflicts_with_all = ["listen", "insecure"], help_heading = "Network")]
    no_listen: bool,
    /// Memory to offer for weights, KV cache, scratch and the process together (such as 3GiB), of each device that
    /// computes here. Default: what the system or its cgroup has free, less a reserve; nothing of a GPU's.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Memory and speed")]
    memory: Option<u64>,
    /// Directory of the blob store. Default: cake/store in the user's data directory.
    #[arg(long, value_name = "DIR", help_heading = "Store")]
    store: Option<PathBuf>,
    /// Most bytes the store may keep (such as 20GiB); least recently used blobs go first.
    /// Default: no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Store")]
    store_limit: Option<u64>,
    /// Name shown to people. It is kept beside the store; where another member of the cluster has it, a number is put
    /// behind it. Default: the name that was kept, or else the host's.
    #[arg(long, help_heading = "Network")]
    name: Option<String>,
    /// Threads for arithmetic, on the fast cores as long as there are enough. Default: the cores this
    /// process may use, without slow ones where the others have most of the speed.
    #[arg(long, help_heading = "Memory and speed")]
    threads: Option<usize>,
    /// Where weights lie: in the mapped files of the store, whose pages the system may drop, or in
    /// a copy in huge pages, which some systems read faster.
    #[arg(long, value_name = "map|copy|auto", default_value_t, help_heading = "Memory and speed")]
    weights: Weights,
    /// Keep weights in memory: the system neither drops nor swaps their pages.
    #[arg(long, help_heading = "Memory and speed")]
    lock_memory: bool,
    /// Where the master is (HOST:PORT, the port that `cake-master token` shows). Default: where it was last, and
    /// where it is found on this network.
    #[arg(long, value_name = "ADDR", conflicts_with = "insecure", help_heading = "Network")]
    master: Option<String>,
    /// What `cake-master token` printed: lets this worker join. Once joined it keeps its certificate beside its
    /// store, and needs no token. Default: none.
    #[arg(long, env = "CAKE_TOKEN", hide_env_values = true, help_heading = "Network")]
    token: Option<JoinToken>,
    /// Connections in plain text with anybody who can reach the address, even if this worker has joined
    /// a cluster.
    #[arg(long, conflicts_with = "token", help_heading = "Network")]
    insecure: bool,
    /// Neither look for the master on this network nor be found there by multicast DNS. A worker that listens on
    /// a loopback address does neither anyway.
    #[arg(long, help_heading = "Network")]
    no_discovery: bool,
    /// How long the master may take to move this worker's layers elsewhere before it stops, once it is asked to
    /// (seconds); asked twice it stops at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Leaving")]
    drain: u64,
    /// Leave the cluster, layers moved first, while the battery has less than this and is not charging
    /// (percent, where the system tells); 0 for never.
    #[arg(long, value_name = "PERCENT", default_value_t = 15, value_parser = clap::value_parser!(u8).range(0..=90), help_heading = "Leaving")]
    min_battery: u8,
    /// Leave the cluster, layers moved first, while the system or its cgroup has less memory free than this
    /// (such as 500MiB). Default: stay.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Leaving")]
    min_free: Option<u64>,
    /// Stop when standard input closes, as it does when the parent process ends.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Args, Debug)]
struct StoreArgs {
    #[command(subcommand)]
    action: StoreAction,
}

#[derive(Debug, Subcommand)]
enum StoreAction {
    /// List the blobs with their sizes and when each was last used.
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Directory of the blob store. Default: cake/store in the user's data directory.
        #[arg(long, value_name = "DIR", help_heading = "Store")]
        store: Option<PathBuf>,
        /// Print JSON.
        #[arg(long, help_heading = "Output")]
        json: bool,
    },
    /// Delete least recently used blobs and half-pushed ones.
    #[command(after_help = PRUNE_EXAMPLES)]
    Prune {
        /// Directory of the blob store. Default: cake/store in the user's data directory.
        #[arg(long, value_name = "DIR", help_heading = "Store")]
        store: Option<PathBuf>,
        /// Keep this much (such as 2GiB); nothing is kept by default.
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0", help_heading = "Store")]
        keep: u64,
        /// Print JSON.
        #[arg(long, help_heading = "Output")]
        json: bool,
    },
}

impl Cli {
    /// Does what the arguments say; returns when it is done or the worker was asked to stop.
    ///
    /// # Errors
    /// One sentence for the person who started it.
    pub fn run(self) -> Result<(), Error> {
        let quiet = format!("warn,{NOTES}=info");
        let level = [quiet.as_str(), "info", "debug"][usize::from(self.verbose.min(2))];
        let _telemetry = self.telemetry.start("cake-worker", level)?;
        match self.command {
            None => self.serve.run(),
            Some(Command::Store(StoreArgs { action })) => action.run(),
            Some(Command::Config { json }) => {
                let (config, section) = (self.config.config.as_deref(), SETTINGS.own);
                let settings =
                    cake_settings::settings(&SETTINGS, Self::command(), config, section)?;
                print(&match json {
                    true => format!("{}\n", serde_json::json!(settings)),
                    false => cake_settings::text(&settings),
                })
            }
        }
    }
}

impl ServeArgs {
    /// Serves until interrupted.
    ///
    /// # Errors
    /// One sentence: a setting, the store or the address cannot be used.
    pub fn run(self) -> Result<(), Error> {
        cake_platform::return_freed_memory();
        let exit_with_parent = self.exit_with_parent;
        let drain = Duration::from_secs(self.drain);
        let (config, why) = self.config()?;
        let (devices, threads) = (config.devices.clone(), config.threads);
        let insecure = config.insecure;
        let (name, store) = (config.name.clone(), config.store.display().to_string());
        // Two threads move bytes, one where there is one core, on which they would only wake each other; the stage
        // computes on threads of its own.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.min(2))
            .enable_all()
            .build()
            .map_err(Error::Start)?;
        let result = runtime.block_on(async {
            let worker = Worker::bind(config).await?;
            let name = worker.membership().name().unwrap_or(name);
            let asked = stop_requests(exit_with_parent); // From here on it ends in order.
            writeln!(
                std::io::stderr(),
                "worker {name:?} offers {} ({why}), {threads} threads, store {store}",
                offered(&devices)
            )
            .ok();
            writeln!(std::io::stderr(), "{}", connections(&worker, insecure)).ok();
            // Last of what it says at its start: programs wait for this line. It serves whether or not anybody reads it.
            match worker.address() {
                Some(address) => writeln!(std::io::stdout(), "listening on {address}").ok(),
                None => writeln!(std::io::stdout(), "not listening, but connecting").ok(),
            };
            let times = |least: usize| {
                let mut asked = asked.clone();
                async move { drop(asked.wait_for(|times| *times >= least).await) }
            };
            let hurry = async {
                tokio::select! {
                    () = tokio::time::sleep(drain) => {}
                    () = times(2) => {}
                }
            };
            worker.run(times(1), hurry).await?;
            Ok::<_, Error>(())
        });
        // Also after a failure: a thread that reads standard input must not hold up the end.
        runtime.shutdown_timeout(std::time::Duration::from_millis(200));
        result
    }

    /// The checked settings, and where the budget comes from.
    fn config(self) -> Result<(Config, String), Error> {
        let (free, mut why) = match self.memory {
            Some(bytes) => (bytes, "as asked".to_owned()),
            None => {
                let offer = cake_platform::default_budget(self.min_free.unwrap_or(0));
                (offer.bytes, offer.why)
            }
        };
        let devices = cake_engine::own_devices()?.into_iter();
        let devices = devices.map(|device| (device, device.memory()));
        let (devices, unknown) = config::offers(devices, self.memory, free)?;
        if !unknown.is_empty() {
            why += &format!("; of {} only what --memory says", unknown.join(", "));
        }
        let store = store_directory(self.store)?;
        let encrypted = self.token.is_some() || membership::is_member(&store);
        if let Some(master) = &self.master
            && !encrypted
        {
            return Err(config::Error::NoToken { master: master.clone() }.into());
        }
        let insecure = self.insecure;
        let no_listen = self.no_listen;
        if no_listen && !encrypted {
            return Err(config::Error::NoListener.into());
        }
        let name = self.name.or_else(|| server::kept_name(&store));
        let checked = Config::checked(
            &self.listen,
            devices,
            store,
            self.store_limit,
            name.unwrap_or_else(cake_platform::host_name),
            self.threads.unwrap_or_else(cake_engine::default_threads),
            insecure || encrypted,
        )?;
        let (battery_percent, free_bytes) = (self.min_battery, self.min_free.unwrap_or(0));
        let told = Config {
            listen: checked.listen.filter(|_| !no_listen),
            weights: self.weights,
            lock_memory: self.lock_memory,
            master: self.master,
            token: self.token,
            discovery: !self.no_discovery,
            reserve: Reserve { battery_percent, free_bytes },
            insecure,
            ..checked
        };
        Ok((told, why))
    }
}

/// Who may connect, in a line.
fn connections(worker: &Worker, insecure: bool) -> String {
    match (worker.membership().worker_id(), insecure) {
        (Some(id), _) => format!("member {id} of a cluster: encrypted, its members alone"),
        (None, true) => "WARNING: connections are in plain text, and anybody who can reach this \
                         address can use this worker (--insecure)"
            .to_owned(),
        (None, false) => "not joined to a cluster: plain text, this machine alone".to_owned(),
    }
}

impl StoreAction {
    fn run(self) -> Result<(), Error> {
        match self {
            Self::List { store, json } => {
                print(&store_cli::list_directory(&store_directory(store)?, json)?)
            }
            Self::Prune { store, keep, json } => {
                let store = Store::open(&store_directory(store)?, None)?;
                print(&store_cli::prune(&store, keep, json)?)
            }
        }
    }
}

/// What is offered, for people: of several devices, each by its name.
fn offered(devices: &[DeviceOffer]) -> String {
    let each = |one: &DeviceOffer| match devices.len() {
        1 => format_bytes(one.budget_bytes),
        _ => format!("{} on {}", format_bytes(one.budget_bytes), one.device.name()),
    };
    devices.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// Text on standard output. If nobody reads it any more, whoever did has seen enough.
fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => Err(Error::Output { source }),
        _ => Ok(()),
    }
}

/// The store asked for, or the default one.
fn store_directory(asked: Option<PathBuf>) -> Result<PathBuf, Error> {
    if let Some(path) = asked {
        return Ok(path);
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let data = variable("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".local/share")))
        .ok_or(Error::NoPlace)?;
    Ok(data.join("cake/store"))
}

/// How often the process was asked to stop from this call on: by signals, as [`interrupts`], and twice by the end of
/// its parent, after which there is nobody to be orderly for.
///
/// # Panics
/// Outside a runtime.
fn stop_requests(exit_with_parent: bool) -> watch::Receiver<usize> {
    let (times, asked) = watch::channel(0);
    let mut interrupts = interrupts();
    tokio::spawn(async move {
        let parent = async {
            if exit_with_parent {
                let wait = || std::io::stdin().read(&mut [0; 1]);
                tokio::task::spawn_blocking(wait).await.ok();
            } else {
                std::future::pending().await
            }
        };
        let mut parent = pin!(parent.fuse());
        loop {
            let more = tokio::select! {
                Some(()) = interrupts.next() => 1,
                () = &mut parent => 2,
            };
            times.send_modify(|times| *times += more);
        }
    });
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_commands_help_has_groups_defaults_and_examples_that_can_be_typed() {
        use clap::ArgAction;
        let mut command = Cli::command();
        command.build();
        let mut left = vec![command];
        let mut seen = 0;
        while let Some(command) = left.pop() {
            let shown = command.get_subcommands().filter(|sub| sub.get_name() != "help");
            left.extend(shown.cloned());
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<&str> = help
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with("cake-worker"))
                .collect();
            assert!(examples.len() >= 2, "{name}: {help}");
            for example in examples {
                assert!(example.contains(name), "{name}: {example}");
                let parsed = Cli::try_parse_from(example.split(' '));
                assert!(parsed.is_ok(), "{example}: {:?}", parsed.err());
            }
            let usual = |id: &str| ["help", "version"].contains(&id);
            let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
            for arg in options.filter(|arg| !usual(arg.get_id().as_str())) {
                let id = format!("{name} {}", arg.get_id());
                assert!(arg.get_help_heading().is_some(), "{id} is in no group");
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let said = help.contains("Default: ") || !arg.get_default_values().is_empty();
                assert!(said || !matches!(arg.get_action(), ArgAction::Set), "{id}: {help}");
            }
            seen += 1;
        }
        assert_eq!(seen, 5, "commands");
    }

    #[test]
    fn weights_lie_in_one_of_three_places() {
        let parsed = |args: &[&str]| Cli::try_parse_from([&["cake-worker"], args].concat());
        let place = |args: &[&str]| parsed(args).map(|cli| cli.serve.weights).ok();
        assert_eq!(place(&[]), Some(Weights::Auto));
        assert_eq!(place(&["--weights", "map"]), Some(Weights::Map));
        assert_eq!(place(&["--weights", "copy", "--lock-memory"]), Some(Weights::Copy));
        let refusal = parsed(&["--weights", "disk"]).expect_err("no such place").to_string();
        assert!(refusal.contains("disk") && refusal.contains("map, copy, auto"), "{refusal}");
        let verbose = |args: &[&str]| parsed(args).map(|cli| cli.verbose).ok();
        assert_eq!([&[][..], &["-v"], &["-vv"]].map(verbose), [0, 1, 2].map(Some));
        assert_eq!(verbose(&["store", "list", "-v"]), Some(1));
        assert!(parsed(&["--weights"]).is_err() && parsed(&["--lock-memory=1"]).is_err());
    }
}
