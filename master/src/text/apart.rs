//! Templates that are rendered by a process of their own, whose end is nobody else's.
//!
//! Steps and text of a template can be counted (`template`); what one of its steps takes cannot: a string is
//! doubled, two lists that hold each other many times are compared. So the program starts itself once more, as
//! a hidden command whose memory the system bounds and whose time a thread of its own watches. It renders one
//! conversation after the other; when it ends before its answer, that conversation has an error, and the next
//! one another process.
//!
//! ```text
//! master ──length (u32), JSON: source, origin, conversation──▶ process
//!        ◀──kind (u8), length (u32), text or reason──────────
//! ```

use std::borrow::Cow;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Error;
use super::error::Bound;
use super::template::{ChatTemplate, Conversation, MAX_OUTPUT_BYTES};

/// Address space beside what the process has when it begins: a request of the largest size is there in some
/// four copies.
const MEMORY_BYTES: u64 = 384 << 20;
/// Longest rendering.
const MAX_SECONDS: u64 = 5;
/// Exit code of a process whose time was up.
const OUT_OF_TIME: u8 = 75;
/// Longest request: a body of the API and the template, with everything in it escaped.
const MAX_REQUEST_BYTES: usize = 256 << 20;
/// Longest reason that is told.
const MAX_REASON_BYTES: usize = 4 << 10;

/// The program that renders, and its arguments.
static PROGRAM: OnceLock<(PathBuf, &'static str)> = OnceLock::new();

/// Has the templates of this process rendered by others from now on, started as `this program COMMAND`, which
/// must call [`render_for_parent`].
pub fn render_apart(command: &'static str) {
    // The file may be replaced while it runs: this is what runs.
    let linux = PathBuf::from("/proc/self/exe");
    let program = if cfg!(target_os = "linux") { Ok(linux) } else { std::env::current_exe() };
    if let Ok(program) = program {
        PROGRAM.get_or_init(|| (program, command));
    }
}

/// A template and what it is to render; nothing if it shall only be parsed.
#[derive(Serialize, Deserialize)]
struct Request<'a> {
    source: Cow<'a, str>,
    origin: Cow<'a, str>,
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
            conversation,
        };
        let request = serde_json::to_vec(&request).expect("strings and values are JSON");
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // One that ended between two requests is no fault of this one.
        let left = running.take().and_then(|mut process| process.is_there().then_some(process));
        let mut process = match left {
            Some(process) => process,
            None => Running::start().map_err(|source| Error::NoRenderer { source })?,
        };
        match process.ask(&request, most_bytes) {
            Ok(answer) => {
                *running = Some(process);
                answer.explain(origin, most_bytes)
            }
            Err(_) => {
                let bound = match process.end() {
                    Some(code) if code == i32::from(OUT_OF_TIME) => Bound::Time(MAX_SECONDS),
                    _ => Bound::Memory(MEMORY_BYTES),
                };
                Err(Error::TemplateExceeds { origin, bound })
            }
        }
    }
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
        let (program, command) = PROGRAM.get().ok_or(io::ErrorKind::NotFound)?;
        let mut process = Command::new(program);
        process.arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
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

    /// Ends it, if it has not ended, and gives its exit code, if it had one.
    fn end(mut self) -> Option<i32> {
        // It has closed its end of the pipes, or ends when it finds these closed.
        drop((self.child.stdin.take(), self.child.stdout.take()));
        self.child.wait().ok()?.code()
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
    bound_memory();
    let watched = watch();
    let (mut requests, mut answers) = (BufReader::new(io::stdin().lock()), io::stdout().lock());
    while let Ok(request) = read(&mut requests, MAX_REQUEST_BYTES) {
        watched.send(true).ok();
        let answer = Answer::of(render(&request));
        watched.send(false).ok();
        if answer.write(&mut answers).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn render(request: &[u8]) -> Result<String, Error> {
    let request: Result<Request<'_>, _> = serde_json::from_slice(request);
    let Request { source, origin, conversation } = request.map_err(|error| {
        let reason = format!("it cannot be handed over: {error}");
        Error::ChatTemplate { origin: String::new(), reason }
    })?;
    let template = ChatTemplate::new(&source, origin.into_owned(), SystemTime::now);
    match conversation {
        Some(conversation) => template.render(&conversation),
        None => template.check().map(|()| String::new()),
    }
}

/// A thread that ends the process when something that began is not over in time. It is told when.
fn watch() -> mpsc::Sender<bool> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(begins) = told.recv() {
            if begins && told.recv_timeout(Duration::from_secs(MAX_SECONDS)).is_err() {
                std::process::exit(i32::from(OUT_OF_TIME));
            }
        }
    });
    tell
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
