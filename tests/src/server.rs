//! A running `cake-master serve`, and requests to it.
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::master::{Master, path};
use crate::process;

/// Longest a server may take to load a small model.
const START: Duration = Duration::from_secs(300);
/// Longest an answer may take.
const ANSWER: Duration = Duration::from_secs(600);

/// A server. Killed when dropped.
#[derive(Debug)]
pub struct Server {
    /// What requests begin with, such as `http://127.0.0.1:40123`.
    pub url: String,
    child: Child,
    agent: ureq::Agent,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// The header `retry-after`.
    pub retry_after: Option<String>,
}

impl Server {
    /// Serves `model`, with the workers of `master` and these arguments.
    ///
    /// # Panics
    /// If it does not listen in time.
    #[track_caller]
    pub fn start(master: &Master, model: &Path, args: &[&str]) -> Self {
        Self::of_several(master, &[model], args)
    }

    /// The same of several models.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[track_caller]
    pub fn of_several(master: &Master, models: &[&Path], args: &[&str]) -> Self {
        let models: Vec<String> = models.iter().map(|model| path(model)).collect();
        let listen = format!("{}:0", master.ip());
        let first = ["serve"].into_iter().chain(models.iter().map(String::as_str));
        let all: Vec<&str> =
            first.chain(["--listen", &listen]).chain(args.iter().copied()).collect();
        Self::from_command(master.command(&all))
    }

    /// Runs a command that serves.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[track_caller]
    pub fn from_command(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("cake-master can be started");
        let stdout = child.stdout.take().expect("piped above");
        let line = process::first_line(stdout, START).unwrap_or_default();
        let Some(url) = line.trim().strip_prefix("listening on ").map(str::to_owned) else {
            child.kill().ok();
            child.wait().ok();
            panic!("the server does not listen: {line}");
        };
        let config = ureq::Agent::config_builder();
        // No connection is used again: after a refusal whose body nobody read, the server closes it, and a client
        // that asks at that moment is disconnected.
        let config = config.max_idle_connections(0).max_idle_connections_per_host(0);
        let config = config.http_status_as_error(false).timeout_global(Some(ANSWER)).build();
        Self { url, child, agent: config.new_agent() }
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks for `path`.
    ///
    /// # Panics
    /// If nothing comes back, or no JSON.
    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        Reply::read(response.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    /// The text at `path`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn text(&self, path: &str) -> String {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        let mut response = response.unwrap_or_else(|error| panic!("GET {path}: {error}"));
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.body_mut().read_to_string().expect("text")
    }

    /// A header of the answer to `GET path`.
    ///
    /// # Panics
    /// If nothing comes back.
    #[track_caller]
    pub fn header(&self, path: &str, name: &str) -> Option<String> {
        self.header_for(path, name, "")
    }

    /// The same for a page of another origin.
    ///
    /// # Panics
    /// As [`Server::header`].
    #[track_caller]
    pub fn header_for(&self, path: &str, name: &str, origin: &str) -> Option<String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if !origin.is_empty() {
            request = request.header("origin", origin);
        }
        let response = request.call().unwrap_or_else(|error| panic!("GET {path}: {error}"));
        Some(response.headers().get(name)?.to_str().ok()?.to_owned())
    }

    /// What `/metrics` says of `name`, the sum over its labels.
    ///
    /// # Panics
    /// If nothing comes back.
    #[track_caller]
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.text("/metrics");
        let of = |line: &str| {
            let rest = line.strip_prefix(name)?;
            if !rest.starts_with([' ', '{']) {
                return None;
            }
            rest.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        text.lines().filter_map(of).reduce(|sum, value| sum + value)
    }

    /// Sends `body` to `path`.
    ///
    /// # Panics
    /// As [`Server::get`].
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string(), None)
    }

    /// The same with any text, and a key.
    ///
    /// # Panics
    /// As [`Server::get`].
    #[track_caller]
    pub fn post_text(&self, path: &str, body: &str, key: Option<&str>) -> Reply {
        let mut request = self.agent.post(format!("{}{path}", self.url));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.header("content-type", "application/json").send(body);
        Reply::read(response.unwrap_or_else(|error| panic!("POST {path}: {error}")))
    }

    /// What whoever brings `key` gets for a body, with one more header.
    ///
    /// # Panics
    /// As [`Server::get`].
    #[track_caller]
    pub fn post_with(
        &self,
        path: &str,
        body: &Value,
        (header, value): (&str, &str),
        key: Option<&str>,
    ) -> Reply {
        let mut request = self.agent.post(format!("{}{path}", self.url)).header(header, value);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.send(body.to_string());
        Reply::read(response.unwrap_or_else(|error| panic!("POST {path}: {error}")))
    }

    /// What a page of `origin` gets that sends an empty object to `path`.
    ///
    /// # Panics
    /// As [`Server::get`].
    #[track_caller]
    pub fn post_from(&self, origin: &str, path: &str) -> Reply {
        let request = self.agent.post(format!("{}{path}", self.url)).header("origin", origin);
        let response = request.header("content-type", "text/plain").send("{}");
        Reply::read(response.unwrap_or_else(|error| panic!("POST {path}: {error}")))
    }

    /// What a browser is told that a page of `origin` may do at `path`, before it does anything: methods, if any.
    ///
    /// # Panics
    /// If nothing comes back.
    #[track_caller]
    pub fn allows(&self, origin: &str, path: &str) -> Vec<String> {
        let request = self.agent.options(format!("{}{path}", self.url)).header("origin", origin);
        let response = request.header("access-control-request-method", "DELETE").call();
        let response = response.unwrap_or_else(|error| panic!("OPTIONS {path}: {error}"));
        let said = |name: &str| response.headers().get(name)?.to_str().ok();
        let allowed = said("access-control-allow-origin").filter(|allowed| *allowed == origin);
        let methods = allowed.and_then(|_| said("access-control-allow-methods"));
        let methods = methods.unwrap_or_default().split(',').map(str::trim);
        methods.filter(|method| !method.is_empty()).map(str::to_owned).collect()
    }

    /// What `GET path` gets whoever calls this server `host`.
    ///
    /// # Panics
    /// As [`Server::get`].
    #[track_caller]
    pub fn get_as(&self, host: &str, path: &str) -> Reply {
        let response = self.agent.get(format!("{}{path}", self.url)).header("host", host).call();
        Reply::read(response.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    /// The data of the events of a stream, as they come.
    ///
    /// # Panics
    /// If nothing comes back.
    #[track_caller]
    pub fn stream(&self, path: &str, body: &Value) -> impl Iterator<Item = String> + use<> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let response = request.send(body.to_string().as_bytes());
        events(response.unwrap_or_else(|error| panic!("POST {path}: {error}")))
    }

    /// The lines of JSON that come back for `body`, as they come.
    ///
    /// # Panics
    /// If nothing comes back, or no JSON.
    #[track_caller]
    pub fn lines(&self, path: &str, body: &Value) -> impl Iterator<Item = Value> + use<> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let response = request.send(body.to_string().as_bytes());
        let response = response.unwrap_or_else(|error| panic!("POST {path}: {error}"));
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        let read =
            |line: String| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        lines.map_while(Result::ok).map(read)
    }

    /// The data of the events at `path`, as they come.
    ///
    /// # Panics
    /// If nothing comes back.
    #[track_caller]
    pub fn stream_of(&self, path: &str) -> impl Iterator<Item = String> + use<> {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        events(response.unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }
}

/// The data of server-sent events.
#[track_caller]
fn events(response: ureq::http::Response<ureq::Body>) -> impl Iterator<Item = String> + use<> {
    assert_eq!(response.status().as_u16(), 200);
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("data: ").map(str::to_owned))
}

impl Reply {
    #[track_caller]
    fn read(mut response: ureq::http::Response<ureq::Body>) -> Self {
        let status = response.status().as_u16();
        let header = response.headers().get("retry-after");
        let retry_after = header.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let text = response.body_mut().read_to_string().expect("a body of text");
        let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        Self { status, body, retry_after }
    }

    /// The body of a good answer.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn good(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// What a refusal says.
    ///
    /// # Panics
    /// If the status is another one.
    #[track_caller]
    pub fn refused(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.body["error"];
        assert!(error["type"].is_string(), "{}", self.body);
        error["message"].as_str().expect("a message").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
