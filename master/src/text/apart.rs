//! Templates that are rendered by a process of their own, whose end is nobody else's.
//!
//! Steps and text of a template can be counted (`template`); what one of its steps takes cannot: a string is
//! doubled, two lists that hold each other many times are compared. So the program starts itself once more, as
//! a hidden command whose memory the system bounds, on Linux alone, and whose time a thread of its own watches. It
//! renders one conversation after the other, until it has no more to read. When a bound ends it before its answer,
//! that conversation has an error, and the next one another process; when somebody else ends it, the same conversation
//! has another one, once.
//!
//! ```text
//! master ──length (u32), JSON: source, origin, steps, conversation──▶ process
//!        ◀──kind (u8), length (u32), text or reason─────────────────
//! ```

use std::borrow::Cow;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use cake_platform::process_gives_way;
use serde::{Deserialize, Serialize};

use super::Error;
use super::error::Bound;
use super::template::{ChatTemplate, Conversation, MAX_OUTPUT_BYTES};

/// Address space beside what the process has when it begins: a request of the largest size is there in some
/// four copies.
const MEMORY_BYTES: u64 = 176 << 20;
/// Longest rendering.
const MAX_SECONDS: u64 = 5;
/// A rendering that takes longer gives way to everything else on this machine: ordinary ones take a millisecond.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Exit code of a process whose time was up.
const OUT_OF_TIME: u8 = 75;
/// Longest request: a body of the API and the template, with everything in it escaped.
const MAX_REQUEST_BYTES: usize = 256 << 20;
/// Longest reason that is told.
const MAX_REASON_BYTES: usize = 4 << 10;

/// The command of the program that renders; it must call [`render_for_parent`].
pub const COMMAND: &str = "render";

/// The program that renders, if it is another process.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Has the templates of this process rendered by others of the same program from now on.
pub fn render_apart() {
    // The file may be replaced while it runs: this is what runs.
    let linux = PathBuf::from("/proc/self/exe");
    let program = if cfg!(target_os = "linux") { Ok(linux) } else { std::env::current_exe() };
    if let Ok(program) = program {
        render_by(program);
    }
}

/// The same by another program, which has the [`COMMAND`].
pub(super) fn render_by(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// A template and what it is to render; nothing if it shall only be parsed.
#[derive(Serialize, Deserialize)]
struct Request<'a> {
    source: Cow<'a, str>,
    origin: Cow<'a, str>,
    /// Most steps of its rendering.
    steps: u64,
    conversation: Option<Conversation<'a>>,
}

/// The process of one template, if there is one.
#[derive(Debug, Default)]
pub(super) struct Apart {
    running: Mutex<Option<Running>>,
}

impl Apart {
    /// Parses a template, in a process of its own if there may be one.
    pub(super) fn check(&self, template: &ChatTemplate) -> Result<(), Error> {
        match PROGRAM.get() {
            None => template.check(),
            Some(_) => self.ask(template, None).map(drop),
        }
    }

    /// Renders a conversation, in a process of its own if there may be one.
    pub(super) fn render(
        &self,
        template: &ChatTemplate,
        conversation: Conversation<'_>,
    ) -> Result<String, Error> {
        match PROGRAM.get() {
            None => template.render(&conversation),
            Some(_) => self.ask(template, Some(conversation)),
        }
    }

    fn ask(
        &self,
        template: &ChatTemplate,
        conversation: Option<Conversation<'_>>,
    ) -> Result<String, Error> {
        let origin = template.origin.clone();
        let most_bytes = conversation.as_ref().map_or(0, |conversation| conversation.most_bytes);
        let request = Request {
            source: Cow::Borrowed(&template.source),
            origin: Cow::Borrowed(&template.origin),
            steps: template.steps(),
            conversation,
        };
        let request = serde_json::to_vec(&request).expect("strings and values are JSON");
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt =
            |running: &mut Option<Running>| attempt(running, &origin, &request, most_bytes);
        let answer = match attempt(&mut running) {
            Err(Error::RendererEnded { .. }) => attempt(&mut running)?,
            answer => answer?,
        };
        answer.explain(origin, most_bytes)
    }
}

/// Asks the process that runs, or a new one, and leaves it there if it has answered.
fn attempt(
    running: &mut Option<Running>,
    origin: &str,
    request: &[u8],
    most_bytes: usize,
) -> Result<Answer, Error> {
    // One that ended between two requests is no fault of this one.
    let left = running.take().and_then(|mut process| process.is_there().then_some(process));
    let mut process = match left {
        Some(process) => process,
        None => Running::start().map_err(|source| Error::NoRenderer { source })?,
    };
    if let Ok(answer) = process.ask(request, most_bytes) {
        *running = Some(process);
        return Ok(answer);
    }
    let status = process.end().map_err(|source| Error::NoRenderer { source })?;
    Err(match bound_behind(status) {
        Some(bound) => Error::TemplateExceeds { origin: origin.to_owned(), bound },
        None => Error::RendererEnded { status },
    })
}

/// The bound that ended a process, if one did: it leaves when its time is up, and is aborted where it finds no memory
/// or no more stack.
fn bound_behind(status: ExitStatus) -> Option<Bound> {
    if status.code() == Some(i32::from(OUT_OF_TIME)) {
        return Some(Bound::Time(MAX_SECONDS));
    }
    #[cfg(unix)]
    let is_memory = {
        use std::os::unix::process::ExitStatusExt;

        use rustix::process::Signal;
        // The last one comes from a system that is short of memory, or from a bound around the whole service.
        let signals = [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::KILL];
        signals.iter().any(|signal| status.signal() == Some(signal.as_raw()))
    };
    #[cfg(not(unix))]
    let is_memory = !status.success();
    is_memory.then_some(Bound::Memory(MEMORY_BYTES))
}

/// What came of a rendering.
enum Answer {
    Text(String),
    Refused(String),
    Broken(String),
    SourceTooLong(String),
    OutOfSteps(String),
    OutputTooLong,
}

impl Answer {
    fn of(outcome: Result<String, Error>) -> Answer {
        match outcome {
            Ok(text) => Answer::Text(text),
            Err(Error::MessagesRefused { message, .. }) => Answer::Refused(message),
            Err(Error::TemplateExceeds { bound, .. }) => match bound {
                Bound::Steps(steps) => Answer::OutOfSteps(steps.to_string()),
                Bound::Source(bytes) => Answer::SourceTooLong(bytes.to_string()),
                _ => Answer::OutputTooLong,
            },
            Err(Error::ChatTemplate { reason, .. }) => Answer::Broken(reason),
            Err(other) => Answer::Broken(other.to_string()),
        }
    }

    fn explain(self, origin: String, most_bytes: usize) -> Result<String, Error> {
        let bound = match self {
            Answer::Text(text) => return Ok(text),
            Answer::Refused(message) => return Err(Error::MessagesRefused { origin, message }),
            Answer::Broken(reason) => return Err(Error::ChatTemplate { origin, reason }),
            Answer::SourceTooLong(bytes) => Bound::Source(bytes.parse().unwrap_or_default()),
            Answer::OutOfSteps(steps) => Bound::Steps(steps.parse().unwrap_or_default()),
            Answer::OutputTooLong => Bound::Output(most_bytes),
        };
        Err(Error::TemplateExceeds { origin, bound })
    }

    fn parts(&self) -> (u8, &str) {
        match self {
            Answer::Text(text) => (0, text),
            Answer::Refused(reason) => (1, reason),
            Answer::Broken(reason) => (2, reason),
            Answer::SourceTooLong(bytes) => (3, bytes),
            Answer::OutOfSteps(steps) => (4, steps),
            Answer::OutputTooLong => (5, ""),
        }
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, mut text) = self.parts();
        if kind != 0 {
            text = &text[..text.floor_char_boundary(MAX_REASON_BYTES)];
        }
        to.write_all(&[kind])?;
        to.write_all(&(text.len() as u32).to_le_bytes())?;
        to.write_all(text.as_bytes())?;
        to.flush()
    }

    fn read(from: &mut impl Read, most_bytes: usize) -> io::Result<Answer> {
        let mut kind = [0; 1];
        from.read_exact(&mut kind)?;
        let text = String::from_utf8(read(from, most_bytes.max(MAX_REASON_BYTES))?);
        let text = text.map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(match kind[0] {
            0 => Answer::Text(text),
            1 => Answer::Refused(text),
            2 => Answer::Broken(text),
            3 => Answer::SourceTooLong(text),
            4 => Answer::OutOfSteps(text),
            5 => Answer::OutputTooLong,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// Reads a length and as many bytes, if they are not more than these.
fn read(from: &mut impl Read, most_bytes: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// A process that renders. Killed when dropped.
#[derive(Debug)]
struct Running {
    child: Child,
}

impl Running {
    fn start() -> io::Result<Running> {
        let program = PROGRAM.get().ok_or(io::ErrorKind::NotFound)?;
        let mut process = Command::new(program);
        process.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C is for the program that a person started; this one ends when it has no more to read.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut process, 0);
        Ok(Running { child: process.spawn()? })
    }

    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ask(&mut self, request: &[u8], most_bytes: usize) -> io::Result<Answer> {
        let (Some(stdin), Some(stdout)) = (&mut self.child.stdin, &mut self.child.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let length = u32::try_from(request.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        stdin.write_all(&length.to_le_bytes())?;
        stdin.write_all(request)?;
        Answer::read(stdout, most_bytes)
    }

    /// Ends it, if it has not ended, and says how it ended.
    fn end(mut self) -> io::Result<ExitStatus> {
        // It has closed its end of the pipes, or ends when it finds these closed.
        drop((self.child.stdin.take(), self.child.stdout.take()));
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Renders what the process that started this one asks for, until that ends.
pub fn render_for_parent() -> ExitCode {
    cake_engine::share_addresses();
    // A template that the engine panics at is an error. To print a backtrace takes more memory than there may be, and
    // where that is short, whoever prints one waits for itself.
    std::panic::set_hook(Box::new(|_| {}));
    bound_memory();
    let (watched, gives_way) = watch();
    let (mut requests, mut answers) = (BufReader::new(io::stdin().lock()), io::stdout().lock());
    while let Ok(request) = read(&mut requests, MAX_REQUEST_BYTES) {
        watched.send(true).ok();
        let answer = Answer::of(render(&request));
        watched.send(false).ok();
        // What gives way does so for ever: the next one is another process's.
        if answer.write(&mut answers).is_err() || gives_way.load(Ordering::Relaxed) {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn render(request: &[u8]) -> Result<String, Error> {
    let request: Result<Request<'_>, _> = serde_json::from_slice(request);
    let Request { source, origin, steps, conversation } = request.map_err(|error| {
        let reason = format!("it cannot be handed over: {error}");
        Error::ChatTemplate { origin: String::new(), reason }
    })?;
    let template = ChatTemplate::new(&source, origin.into_owned(), SystemTime::now);
    let template = template.with_steps(steps);
    match conversation {
        Some(conversation) => template.render(&conversation),
        None => template.check().map(|()| String::new()),
    }
}

/// A thread that has the process give way, and then ends it, when something that began is not over in time. It is told
/// when, and tells whether the process gives way.
fn watch() -> (mpsc::Sender<bool>, Arc<AtomicBool>) {
    let (tell, told) = mpsc::channel::<bool>();
    let gives_way = Arc::new(AtomicBool::new(false));
    let gave_way = gives_way.clone();
    std::thread::spawn(move || {
        while let Ok(begins) = told.recv() {
            if !begins || told.recv_timeout(AT_ONCE).is_ok() {
                continue;
            }
            gave_way.store(true, Ordering::Relaxed);
            process_gives_way();
            if told.recv_timeout(Duration::from_secs(MAX_SECONDS) - AT_ONCE).is_err() {
                std::process::exit(i32::from(OUT_OF_TIME));
            }
        }
    });
    (tell, gives_way)
}

/// Lets this process have no more memory than a template may take.
fn bound_memory() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
        if let Some(pages) = pages {
            let most = Some(pages * rustix::param::page_size() as u64 + MEMORY_BYTES);
            // Whoever may not bound itself was bounded by somebody else.
            setrlimit(Resource::As, Rlimit { current: most, maximum: most }).ok();
            // Where it ends for want of memory, nobody wants to see that memory.
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).ok();
        }
    }
}

const _: () = assert!(MAX_OUTPUT_BYTES <= u32::MAX as usize);

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;

    use super::*;

    #[test]
    fn only_what_a_bound_ended_exceeds_it() {
        let left = |code: u8| ExitStatus::from_raw(i32::from(code) << 8);
        let ended = |signal: Signal| ExitStatus::from_raw(signal.as_raw());
        assert_eq!(bound_behind(left(OUT_OF_TIME)), Some(Bound::Time(MAX_SECONDS)));
        for signal in [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::KILL] {
            let memory = Some(Bound::Memory(MEMORY_BYTES));
            assert_eq!(bound_behind(ended(signal)), memory, "{signal:?}");
        }
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::PIPE] {
            assert_eq!(bound_behind(ended(signal)), None, "{signal:?}");
        }
        for code in [0, 1, 101] {
            assert_eq!(bound_behind(left(code)), None, "{code}");
        }
    }
}
