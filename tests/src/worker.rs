//! A worker process in a directory of its own.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cake_identity::{Identity, Security};
use cake_proto::{Client, ConnectError, Tag};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::programs::environment;
use crate::{Cgroup, Host, process, programs};

/// How long a worker may take to listen.
const START: Duration = Duration::from_secs(120);

/// Opens a connection in plain text, as a master without an authority does.
///
/// # Errors
/// If nobody is there.
pub async fn dial(address: &str, tag: Tag) -> Result<Client, ConnectError> {
    Ok(cake_proto::connect(&Security::Plain, address, None, tag).await?.0)
}

/// How a worker is started.
#[derive(Debug)]
pub struct WorkerOptions<'a> {
    /// Bytes offered.
    pub memory: u64,
    /// Threads for arithmetic.
    pub threads: usize,
    /// Directory it runs in, its store below; a temporary one if not given.
    pub directory: Option<PathBuf>,
    /// Directory of the store; `store` in the worker's own directory if not given.
    pub store: Option<PathBuf>,
    /// Address to listen on; if empty it does not listen.
    pub listen: String,
    /// Whether it is told its name, and does not know it from before.
    pub named: bool,
    /// More arguments.
    pub args: Vec<String>,
    /// More environment.
    pub env: Vec<(String, String)>,
    /// Groups that the process is put in before it starts.
    pub cgroups: Vec<&'a Cgroup>,
    /// The only core that it may run on; any if not given.
    pub core: Option<usize>,
    /// A directory that this worker shall find empty (needs root).
    pub hide: Option<PathBuf>,
    /// A directory, and the one that this worker shall find in its place (needs root).
    pub replace: Option<(PathBuf, PathBuf)>,
    /// The host that it runs on, if not on this one.
    pub host: Option<Host>,
}

impl Default for WorkerOptions<'_> {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            threads: 1,
            directory: None,
            store: None,
            listen: "127.0.0.1:0".to_owned(),
            named: true,
            args: Vec::new(),
            env: Vec::new(),
            cgroups: Vec::new(),
            core: None,
            hide: None,
            replace: None,
            host: None,
        }
    }
}

/// A running `cake-worker`. Killed when dropped.
#[derive(Debug)]
pub struct TestWorker {
    /// Its name.
    pub name: String,
    /// Where it listens; empty if it does not.
    pub address: String,
    child: Child,
    directory: PathBuf,
    store: PathBuf,
    _temporary: Option<TempDir>,
}

impl TestWorker {
    /// Starts a worker with 1 GiB and one thread.
    ///
    /// # Panics
    /// If it does not listen in time.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        Self::start(name, WorkerOptions::default())
    }

    /// Starts several such workers.
    ///
    /// # Panics
    /// As [`TestWorker::new`].
    #[track_caller]
    pub fn several(names: &[&str]) -> Vec<Self> {
        names.iter().map(|name| Self::new(name)).collect()
    }

    /// Starts a worker.
    ///
    /// # Panics
    /// If it does not listen in time; the message has what it logged.
    #[track_caller]
    pub fn start(name: &str, options: WorkerOptions<'_>) -> Self {
        let temporary = options.directory.is_none().then(|| {
            TempDir::with_prefix(format!("cake-{name}-"))
                .expect("the system has a temporary folder")
        });
        let directory = match (&options.directory, &temporary) {
            (Some(directory), _) => directory.clone(),
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => unreachable!("made just above"),
        };
        let store = options.store.clone().unwrap_or_else(|| directory.join("store"));
        let mut command = command(name, &options, &directory, &store);
        let log = directory.join("worker.log");
        let file = File::create(&log).expect("the worker's directory can be written");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut child = command.spawn().expect("cake-worker can be started");
        let stdout = child.stdout.take().expect("piped above");
        let line = process::first_line(stdout, START).unwrap_or_default();
        let said = line.trim();
        let address = said.strip_prefix("listening on ");
        let address = address.or(said.strip_prefix("not listening").map(|_| ""));
        let Some(address) = address.map(str::to_owned) else {
            child.kill().ok();
            child.wait().ok();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("worker {name} does not listen: {line}{log}");
        };
        Self { name: name.to_owned(), address, child, directory, store, _temporary: temporary }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// The key and the certificate that it keeps as a member of a cluster.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn identity(&self) -> Identity {
        let kept = Identity::open(&self.store.join("identity.json"));
        kept.expect("readable").expect("it joined")
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("worker.log")).unwrap_or_default()
    }

    /// Largest resident size so far (bytes).
    ///
    /// # Panics
    /// If it runs no more.
    #[track_caller]
    pub fn vm_hwm(&self) -> u64 {
        process::peak_bytes(self.pid()).expect("the worker runs")
    }

    /// Whether it runs.
    pub fn alive(&self) -> bool {
        process::alive(self.pid())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("it was started"), signal).ok(); // Perhaps it is gone already.
    }

    /// Kills it at once and leaves its directory.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command(name: &str, options: &WorkerOptions<'_>, directory: &Path, store: &Path) -> Command {
    // A shell joins the groups and hides what is to be hidden, then becomes the worker.
    let mut script = String::new();
    for file in options.cgroups.iter().map(|group| group.procs()) {
        script.push_str(&format!("echo $$ > '{}' && ", file.display()));
    }
    if let Some(core) = options.core {
        script.push_str(&format!("taskset -p -c {core} $$ > /dev/null && "));
    }
    if let Some(hide) = &options.hide {
        script.push_str(&format!("mount -t tmpfs -o size=64k none '{}' && ", hide.display()));
    }
    if let Some((place, other)) = &options.replace {
        script.push_str(&format!("mount --bind '{}' '{}' && ", other.display(), place.display()));
    }
    let mounts = options.hide.is_some() || options.replace.is_some();
    let worker = &programs().worker;
    let mut command = if script.is_empty() {
        Command::new(worker)
    } else {
        let mut command = Command::new(if mounts { "unshare" } else { "sh" });
        if mounts {
            command.args(["-m", "sh"]);
        }
        command.args(["-c", &format!("{script}exec \"$@\""), "sh"]).arg(worker);
        command
    };
    match options.listen.as_str() {
        "" => command.arg("--no-listen"),
        listen => command.args(["--listen", listen]),
    };
    if options.named {
        command.args(["--name", name]);
    }
    command
        .args(["--memory", &options.memory.to_string(), "--threads", &options.threads.to_string()])
        .arg("--store")
        .arg(store)
        .args(&options.args)
        .current_dir(directory)
        .env("CAKE_CONFIG", "")
        .env_remove("CAKE_LOG")
        .env_remove("CAKE_DEVICE")
        .envs(environment())
        .envs(options.env.iter().cloned());
    match &options.host {
        Some(host) => host.command(&command),
        None => command,
    }
}
