//! A program run to its end under a deadline, with what it printed and what the system counted of it.
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

/// How long a program may take unless told otherwise.
pub const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
/// The same, of one that runs for seconds.
const SELDOM: Duration = Duration::from_millis(100);

/// A program that runs, its output being collected. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    command: String,
    stdout: Collector,
    stderr: Collector,
    peak_bytes: u64,
    /// A folder that it works in and that is deleted with whoever has it last.
    _folder: Option<Arc<TempDir>>,
}

/// A program that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it printed for programs.
    pub stdout: String,
    /// What it printed for people.
    pub stderr: String,
    /// The command line.
    pub command: String,
    /// Largest resident size seen, sampled every few milliseconds.
    pub peak_bytes: u64,
    /// Bytes that read calls returned, sockets included.
    pub read_call_bytes: u64,
    /// Bytes that came from a disk, mapped ones included.
    pub disk_read_bytes: u64,
}

impl Running {
    /// Starts `command`. Standard input is a pipe that stays open until [`Running::stdin`] is dropped.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let text = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error}"));
        let stdout = Collector::start(child.stdout.take().expect("piped above"));
        let stderr = Collector::start(child.stderr.take().expect("piped above"));
        Self { child, command: text, stdout, stderr, peak_bytes: 0, _folder: None }
    }

    /// The same; `folder` is there for as long as it runs.
    pub fn keeping(mut self, folder: Arc<TempDir>) -> Self {
        self._folder = Some(folder);
        self
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input; dropping it ends the input.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it has printed for programs so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has printed for people so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until `text` was printed on either output.
    ///
    /// # Panics
    /// If that does not happen in time, or the program ends before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str, limit: Duration) {
        let started = Instant::now();
        while !(self.stdout().contains(text) || self.stderr().contains(text)) {
            let ended = self.ended() && {
                self.stdout.join();
                self.stderr.join();
                !(self.stdout().contains(text) || self.stderr().contains(text))
            };
            assert!(
                !ended && started.elapsed() < limit,
                "no {text:?} from {} within {limit:?}{}\nstdout: {}\nstderr: {}",
                self.command,
                if ended { " (it ended)" } else { "" },
                self.stdout(),
                self.stderr(),
            );
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.raw(), signal).ok();
    }

    /// Kills it at once, as `kill -9` does, and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If it has not ended after `limit`; the message has what it printed.
    #[track_caller]
    pub fn finish(mut self, limit: Duration) -> Finished {
        drop(self.child.stdin.take());
        let started = Instant::now();
        while !self.ended() {
            self.peak_bytes = self.peak_bytes.max(peak_bytes(self.pid()).unwrap_or(0));
            if started.elapsed() > limit {
                self.child.kill().ok();
                panic!(
                    "{} did not end within {limit:?}\nstdout: {}\nstderr: {}",
                    self.command,
                    self.stdout(),
                    self.stderr()
                );
            }
            // Seldom where it takes long: on few processors, looking takes time from what is looked at.
            std::thread::sleep((started.elapsed() / 20).clamp(POLL, SELDOM));
        }
        // Ended but not yet reaped: the system still has its counters.
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.pid())).unwrap_or_default();
        let status = self.child.wait().expect("it has ended");
        self.stdout.join();
        self.stderr.join();
        Finished {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
            command: self.command.clone(),
            peak_bytes: self.peak_bytes,
            read_call_bytes: field(&io, "rchar:").unwrap_or(0),
            disk_read_bytes: field(&io, "read_bytes:").unwrap_or(0),
        }
    }

    fn raw(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it has ended, without reaping it.
    fn ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.raw()), options), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Finished {
    /// Itself, if the program was content.
    ///
    /// # Panics
    /// If it ended with another status than 0.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(
            self.status.success(),
            "{} ended with {}\nstdout: {}\nstderr: {}",
            self.command,
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The JSON that it printed.
    ///
    /// # Panics
    /// If it failed or printed none.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let this = self.success();
        serde_json::from_str(&this.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", this.command, this.stdout))
    }

    /// The one sentence with which it refused, without the program's name.
    ///
    /// # Panics
    /// If it did not refuse with exit code 1, said more or less than one sentence, or said it in
    /// the words of a programming language.
    #[track_caller]
    pub fn refusal(&self) -> String {
        let sentences = self.refusals();
        assert_eq!(
            sentences.len(),
            1,
            "{} said more than a sentence: {}",
            self.command,
            self.stderr
        );
        sentences.into_iter().next().expect("one sentence")
    }

    /// The sentences with which it refused, where one is due per device.
    ///
    /// # Panics
    /// As [`Finished::refusal`].
    #[track_caller]
    pub fn refusals(&self) -> Vec<String> {
        let all = format!("{}\nstdout: {}\nstderr: {}", self.command, self.stdout, self.stderr);
        assert_eq!(self.status.code(), Some(1), "ended with {}: {all}", self.status);
        // What people should know before it goes on is no part of the refusal.
        let is_note = |line: &&str| line.starts_with("note: ") || line.starts_with("warning: ");
        let notes = self.stderr.lines().take_while(is_note);
        let notes: usize = notes.map(|line| line.len() + 1).sum();
        let said = self.stderr.get(notes..).unwrap_or_default().trim();
        let said = said.strip_prefix("cake-master: ").or(said.strip_prefix("cake-worker: "));
        let said = said.unwrap_or_else(|| panic!("does not begin with the program's name: {all}"));
        for odd in [
            "panicked",
            "RUST_BACKTRACE",
            "stack backtrace",
            "Os {",
            "Err(",
            "Some(",
            "Status {",
            "::",
        ] {
            assert!(!said.contains(odd), "no sentence for people ({odd:?}): {all}");
        }
        assert!(!said.is_empty() && !said.ends_with('.'), "no sentence: {all}");
        said.lines().map(str::to_owned).collect()
    }
}

/// Largest resident size of a process so far (`VmHWM`); `None` once it has ended.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

/// A size that the system tells of a process, such as `RssAnon:`; `None` once it has ended.
pub fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(field(&status, name)? * 1024)
}

/// The same of a process and of all that it started, those of theirs included: what it costs its machine. Pages that
/// they share count for each.
pub fn family_bytes(pid: u32, name: &str) -> Option<u64> {
    let own = status_bytes(pid, name)?;
    // Between its start and its first instruction a child has its parent's memory, which is there once.
    let command = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    let begun = children(pid).into_iter().filter(|child| command(*child) != command(pid));
    let theirs = begun.filter_map(|child| family_bytes(child, name));
    Some(own + theirs.sum::<u64>())
}

/// What a process has started and not waited for; nothing once it has ended.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let lists = lists.collect::<Vec<_>>().join(" ");
    lists.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Whether a process of that id exists and is no zombie.
pub fn alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which stands in parentheses.
    !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

/// Reads a pipe to its end on a thread of its own, so that the program never waits for us.
#[derive(Debug)]
struct Collector {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = text.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                shared.lock().expect("no writer panics").extend_from_slice(&buffer[..count]);
            }
        });
        Self { text, thread: Some(thread) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("no writer panics")).into_owned()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The first line of `pipe`, or `None` if it does not come in time.
pub(crate) fn first_line(pipe: impl Read + Send + 'static, limit: Duration) -> Option<String> {
    let (send, line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok() {
            send.send(line).ok();
        }
        std::io::copy(&mut reader, &mut std::io::sink()).ok(); // Never let the program wait.
    });
    line.recv_timeout(limit).ok().filter(|line| !line.is_empty())
}
