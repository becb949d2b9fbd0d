//! A hub on loopback, shaped like the real one: a listing, files in Git and in LFS, a second host that the latter lead to;
//! with the faults that are asked for, and a count of what it served.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::json;

/// The commit that everything is of.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// What is written to a connection at once.
const PIECE: usize = 64 << 10;
/// What is made or hashed at once.
const MOST_PIECE: usize = 1 << 20;
/// After how many bytes made-up ones repeat: a prime number, so that no part of a file is like another.
const PERIOD: usize = 65_521;

/// A hub with one repository. Ends when dropped.
#[derive(Debug)]
pub struct Hub {
    /// What `HF_ENDPOINT` should be.
    pub url: String,
    state: Arc<State>,
}

/// How it behaves. Without anything: well.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// Whoever does not show this token is refused.
    pub token: Option<String>,
    /// The listing has names and nothing else, as older hubs have it.
    pub names_only: bool,
    /// Ranges are not known: all of a file is sent.
    pub no_ranges: bool,
    /// So many requests for files are first refused: too many at once, a second to wait.
    pub busy: usize,
    /// Connections are dropped when so many bytes of files were served in all; ascending.
    pub drops: Vec<u64>,
    /// Bytes per second of each connection.
    pub rate: Option<u64>,
    /// The file of that name has another first byte than it should have.
    pub wrong: Option<String>,
    /// In place of that file comes what Git has of it.
    pub pointer: Option<String>,
    /// In place of that file comes a page to log in to.
    pub page: Option<String>,
    /// After so many bytes of files nothing more comes of those that are sent in several pieces, and connections stay open,
    /// until somebody says so.
    pub hangs_after: Option<u64>,
}

#[derive(Debug)]
struct State {
    repo: String,
    files: BTreeMap<String, HubFile>,
    manners: Mutex<Manners>,
    /// The second host.
    elsewhere: SocketAddr,
    served: AtomicU64,
    requests: AtomicUsize,
    leaked: AtomicBool,
    closed: AtomicBool,
}

/// A file of the repository.
#[derive(Clone, Debug)]
struct HubFile {
    content: Content,
    digest: String,
    in_lfs: bool,
}

/// Bytes of a file.
#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// So many, that repeat after a while.
    Made(u64, Arc<[u8]>),
    /// So many, that nobody ever sees.
    Promised(u64),
}

impl Hub {
    /// A hub whose repository has the files of a directory; weights are in LFS.
    ///
    /// # Panics
    /// If the directory cannot be read.
    pub fn of(repo: &str, directory: &Path) -> Hub {
        let entries = std::fs::read_dir(directory).expect("the model is there").flatten();
        let files = entries.filter(|entry| entry.path().is_file()).map(|entry| {
            let name = entry.file_name().into_string().expect("test names are UTF-8");
            let bytes = std::fs::read(entry.path()).expect("the model can be read");
            (name, Content::Bytes(bytes))
        });
        Hub::with(repo, files.collect())
    }

    /// A hub whose repository has a file of so many made-up bytes, `model.safetensors`, and a configuration.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn made(repo: &str, bytes: u64) -> Hub {
        let config = Content::Bytes(b"{}".to_vec());
        let files = [("config.json", config), ("model.safetensors", Content::made(bytes))];
        Hub::with(repo, files.map(|(name, content)| (name.to_owned(), content)).into())
    }

    /// A hub that says that its repository has a file of so many bytes, and never sends it.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn promising(repo: &str, bytes: u64) -> Hub {
        let files = vec![("model.safetensors".to_owned(), Content::Promised(bytes))];
        Hub::with(repo, files)
    }

    fn with(repo: &str, files: Vec<(String, Content)>) -> Hub {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let (hub, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        let state = Arc::new(State {
            repo: repo.to_owned(),
            files: files
                .into_iter()
                .map(|(name, content)| (name.clone(), HubFile::new(&name, content)))
                .collect(),
            manners: Mutex::default(),
            elsewhere: address(&cdn),
            served: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            leaked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let url = format!("http://{}", address(&hub));
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let state = state.clone();
            std::thread::spawn(move || accept(&listener, &state, is_cdn));
        }
        Hub { url, state }
    }

    /// Behaves so from now on.
    pub fn behave(&self, manners: Manners) {
        *self.state.manners.lock().unwrap_or_else(PoisonError::into_inner) = manners;
    }

    /// Bytes of files that were sent so far.
    pub fn served(&self) -> u64 {
        self.state.served.load(Ordering::SeqCst)
    }

    /// Requests for files so far, those that were refused or led elsewhere included.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Whether the second host was ever shown a token.
    pub fn leaked(&self) -> bool {
        self.state.leaked.load(Ordering::SeqCst)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.state.files.values().map(|file| file.content.len()).sum()
    }

    /// Bytes of one file.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn bytes_of(&self, name: &str) -> u64 {
        self.state.files[name].content.len()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Both wake up and see that.
        let hub = self.url.trim_start_matches("http://").to_owned();
        TcpStream::connect(hub).ok();
        TcpStream::connect(self.state.elsewhere).ok();
    }
}

impl HubFile {
    fn new(name: &str, content: Content) -> HubFile {
        let in_lfs = name.ends_with(".safetensors") || name.ends_with(".bin");
        let mut context = Context::new(if in_lfs { &SHA256 } else { &SHA1_FOR_LEGACY_USE_ONLY });
        if !in_lfs {
            context.update(format!("blob {}\0", content.len()).as_bytes());
        }
        let mut at = 0;
        let known = if let Content::Promised(_) = content { 0 } else { content.len() };
        while at < known {
            let piece = content.piece(at, known.min(at + MOST_PIECE as u64));
            context.update(&piece);
            at += piece.len() as u64;
        }
        let digest = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        HubFile { content, digest, in_lfs }
    }
}

impl Content {
    fn made(bytes: u64) -> Content {
        let byte = |at: usize| (((at % PERIOD) as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
        Content::Made(bytes, (0..PERIOD + MOST_PIECE).map(byte).collect())
    }

    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Made(bytes, _) | Content::Promised(bytes) => *bytes,
        }
    }

    fn piece(&self, start: u64, end: u64) -> Vec<u8> {
        match self {
            Content::Bytes(bytes) => bytes[start as usize..end as usize].to_vec(),
            Content::Promised(_) => Vec::new(),
            Content::Made(_, period) => {
                let at = (start % PERIOD as u64) as usize;
                period[at..at + (end - start) as usize].to_vec()
            }
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>, is_cdn: bool) {
    for stream in listener.incoming().flatten() {
        if state.closed.load(Ordering::SeqCst) {
            return;
        }
        let state = state.clone();
        std::thread::spawn(move || converse(&stream, &state, is_cdn).ok());
    }
}

/// A request, as far as it matters.
struct Request {
    is_head: bool,
    path: String,
    range: Option<(u64, u64)>,
    authorization: Option<String>,
}

/// Answers one request after the other.
fn converse(stream: &TcpStream, state: &State, is_cdn: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        let mut out = stream;
        let go_on = if is_cdn {
            elsewhere(&mut out, state, &request)?
        } else {
            own(&mut out, state, &request)?
        };
        if !go_on {
            break;
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let is_head = words.next() == Some("HEAD");
    let path = words.next().unwrap_or_default().to_owned();
    let (mut range, mut authorization) = (None, None);
    loop {
        let mut header = String::new();
        reader.by_ref().take(64 << 10).read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let numbers = value.trim_start_matches("bytes=").split_once('-');
                range = numbers.and_then(|(start, end)| {
                    Some((start.parse().ok()?, end.parse::<u64>().ok()? + 1))
                });
            }
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(Some(Request { is_head, path, range, authorization }))
}

/// The hub itself.
fn own(out: &mut impl Write, state: &State, request: &Request) -> std::io::Result<bool> {
    let manners = state.manners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let shown = request.authorization.as_deref().and_then(|text| text.strip_prefix("Bearer "));
    if manners.token.is_some() && manners.token.as_deref() != shown {
        return head(out, "401 Unauthorized", &[("x-error-code", "GatedRepo".into())], 0);
    }
    let path = request.path.split('?').next().unwrap_or_default();
    let api = format!("/api/models/{}/revision/", state.repo);
    if path.starts_with(&api) {
        return match &path[api.len()..] {
            "main" | COMMIT => {
                let body = listing(state, manners.names_only);
                head(
                    out,
                    "200 OK",
                    &[("content-type", "application/json".into())],
                    body.len() as u64,
                )?;
                out.write_all(body.as_bytes())?;
                Ok(true)
            }
            _ => head(out, "404 Not Found", &[("x-error-code", "RevisionNotFound".into())], 0),
        };
    }
    state.requests.fetch_add(1, Ordering::SeqCst);
    let resolve = format!("/{}/resolve/{COMMIT}/", state.repo);
    let cached = format!("/api/resolve-cache/models/{}/{COMMIT}/", state.repo);
    let Some((name, is_cached)) = (path.strip_prefix(&resolve).map(|name| (name, false)))
        .or_else(|| path.strip_prefix(&cached).map(|name| (name, true)))
    else {
        return head(out, "404 Not Found", &[("x-error-code", "RepoNotFound".into())], 0);
    };
    let Some(file) = state.files.get(name) else {
        return head(out, "404 Not Found", &[("x-error-code", "EntryNotFound".into())], 0);
    };
    if is_busy(state) {
        return head(out, "429 Too Many Requests", &[("retry-after", "1".into())], 0);
    }
    let facts = |location: String| {
        let [size, tag] = [file.content.len().to_string(), format!("\"{}\"", file.digest)];
        [
            ("location", location),
            ("x-linked-size", size),
            ("x-linked-etag", tag),
            ("x-repo-commit", COMMIT.into()),
        ]
    };
    match (file.in_lfs, is_cached) {
        (true, _) => {
            let location = format!("http://{}/{name}?signature=1", state.elsewhere);
            head(out, "302 Found", &facts(location), 0)
        }
        (false, false) => head(out, "307 Temporary Redirect", &facts(format!("{cached}{name}")), 0),
        (false, true) => send(out, state, &manners, name, file, request),
    }
}

/// Where files of LFS are.
fn elsewhere(out: &mut impl Write, state: &State, request: &Request) -> std::io::Result<bool> {
    if request.authorization.is_some() {
        state.leaked.store(true, Ordering::SeqCst);
    }
    let name = request.path.split('?').next().unwrap_or_default().trim_start_matches('/');
    let manners = state.manners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match state.files.get(name) {
        Some(file) => send(out, state, &manners, name, file, request),
        None => head(out, "404 Not Found", &[], 0),
    }
}

/// Whether a request is one of those that are refused first.
fn is_busy(state: &State) -> bool {
    let mut manners = state.manners.lock().unwrap_or_else(PoisonError::into_inner);
    let busy = manners.busy > 0;
    manners.busy = manners.busy.saturating_sub(1);
    busy
}

fn listing(state: &State, names_only: bool) -> String {
    let sibling = |(name, file): (&String, &HubFile)| {
        let (size, digest) = (file.content.len(), &file.digest);
        match file.in_lfs {
            _ if names_only => json!({ "rfilename": name }),
            true => json!({ "rfilename": name, "size": size, "blobId": "0".repeat(40),
                "lfs": { "sha256": digest, "size": size, "pointerSize": 134 } }),
            false => json!({ "rfilename": name, "size": size, "blobId": digest }),
        }
    };
    let siblings: Vec<_> = state.files.iter().map(sibling).collect();
    json!({ "id": state.repo, "sha": COMMIT, "siblings": siblings }).to_string()
}

fn head(
    out: &mut impl Write,
    status: &str,
    headers: &[(&str, String)],
    length: u64,
) -> std::io::Result<bool> {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    out.write_all(
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n").as_bytes(),
    )?;
    Ok(true)
}

/// Sends a file or a range of it, with the faults of these manners. Whether the connection goes on.
fn send(
    out: &mut impl Write,
    state: &State,
    manners: &Manners,
    name: &str,
    file: &HubFile,
    request: &Request,
) -> std::io::Result<bool> {
    let is = |named: &Option<String>| named.as_deref() == Some(name);
    let instead = if is(&manners.pointer) {
        let (digest, size) = (&file.digest, file.content.len());
        Some(format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
        ))
    } else if is(&manners.page) {
        Some("<!DOCTYPE html><title>Log in</title>".to_owned())
    } else {
        None
    };
    let content =
        instead.map_or_else(|| file.content.clone(), |text| Content::Bytes(text.into_bytes()));
    let whole = content.len();
    let range =
        request.range.filter(|_| !manners.no_ranges).map(|(start, end)| (start, end.min(whole)));
    if range.is_some_and(|(start, _)| start >= whole) {
        let said = format!("bytes */{whole}");
        return head(out, "416 Range Not Satisfiable", &[("content-range", said)], 0);
    }
    let tag = ("etag", format!("\"{}\"", file.digest));
    match range {
        Some((start, end)) => {
            let said = format!("bytes {start}-{}/{whole}", end - 1);
            head(out, "206 Partial Content", &[tag, ("content-range", said)], end - start)?;
        }
        None => {
            head(out, "200 OK", &[tag], whole)?;
        }
    }
    if request.is_head {
        return Ok(true);
    }
    let (start, end) = range.unwrap_or((0, whole));
    let began = Instant::now();
    let mut at = start;
    while at < end {
        let mut piece = content.piece(at, end.min(at + PIECE as u64));
        if at == 0 && is(&manners.wrong) {
            piece[0] ^= 1;
        }
        while whole > PIECE as u64 && state.hangs() {
            if state.closed.load(Ordering::SeqCst) {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if state.is_dropped() {
            return Ok(false);
        }
        out.write_all(&piece)?;
        state.served.fetch_add(piece.len() as u64, Ordering::SeqCst);
        at += piece.len() as u64;
        if let Some(rate) = manners.rate {
            let due = Duration::from_secs_f64((at - start) as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    Ok(true)
}

impl State {
    /// Whether nothing more comes for now.
    fn hangs(&self) -> bool {
        let manners = self.manners.lock().unwrap_or_else(PoisonError::into_inner);
        manners.hangs_after.is_some_and(|bytes| bytes <= self.served.load(Ordering::SeqCst))
    }

    /// Whether this connection is one that is dropped now.
    fn is_dropped(&self) -> bool {
        let mut manners = self.manners.lock().unwrap_or_else(PoisonError::into_inner);
        let due =
            manners.drops.first().is_some_and(|bytes| *bytes <= self.served.load(Ordering::SeqCst));
        if due {
            manners.drops.remove(0);
        }
        due
    }
}
