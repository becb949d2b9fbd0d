//! llama.cpp's server: several streams at once, each a request over HTTP.
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{Peers, Server};

/// How long it may take to load the model.
const LOADING: Duration = Duration::from_secs(120);
/// How long it may be silent in a stream.
const SILENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// Positions that all slots share.
const CONTEXT: usize = 2048;

/// How fast several sequences go together (tokens generated per second, of all of them).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Together {
    /// From the start of the prompts to the last token.
    pub(crate) total: f64,
    /// While all of them decode.
    pub(crate) decode: f64,
}

impl Peers {
    /// The server with two threads and a slot for each of `prompts`, which are sent at once; each is
    /// answered with `tokens` tokens. `kind` is the name of a GGUF file.
    ///
    /// # Errors
    /// If it is not there, fails, or falls silent.
    pub(crate) fn llama_server(
        &self,
        kind: &str,
        prompts: &[Vec<u32>],
        tokens: usize,
    ) -> Result<Together> {
        let (server, address) = self.start_server(kind, prompts.len())?;
        stream(address, &prompts[0], tokens)?; // Warms it up.
        let started = Instant::now();
        let streams = std::thread::scope(|scope| {
            let start = |prompt| scope.spawn(move || stream(address, prompt, tokens));
            let threads: Vec<_> = prompts.iter().map(Vec::as_slice).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<Instant>>>| {
                thread.join().unwrap_or_else(|_| bail!("a client of llama.cpp's server panicked"))
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        drop(server);
        rates(started, &streams)
    }

    fn start_server(&self, kind: &str, slots: usize) -> Result<(Server, SocketAddr)> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        drop(free);
        let mut command = Command::new(self.0.join("build/bin/llama-server"));
        command.arg("-m").arg(self.0.join(format!("gguf/{kind}.gguf")));
        command.args(["-t", "2", "-tb", "2", "-ngl", "0", "--cache-ram", "0", "-fit", "off"]);
        command.args(["-np", &slots.to_string(), "-c", &CONTEXT.to_string()]);
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Server(child.context("cannot start llama.cpp's server")?);
        let started = Instant::now();
        while !healthy(address) {
            if let Some(status) = server.0.try_wait()? {
                bail!("llama.cpp's server ended with {status}");
            }
            ensure!(started.elapsed() < LOADING, "llama.cpp's server is not ready in time");
            std::thread::sleep(POLL);
        }
        Ok((server, address))
    }
}

/// What the arrival times of each stream's tokens amount to.
///
/// # Errors
/// If the streams never went on together.
fn rates(started: Instant, streams: &[Vec<Instant>]) -> Result<Together> {
    let all = || streams.iter().flatten();
    let end = all().max().context("no token came")?;
    let first = streams.iter().filter_map(|stream| stream.first()).max();
    let last = streams.iter().filter_map(|stream| stream.last()).min();
    let (first, last) = first.zip(last).context("no token came")?;
    ensure!(first < last, "one stream ended before another one began");
    let during = all().filter(|&token| token > first && token <= last).count();
    let per_second = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64();
    Ok(Together {
        total: per_second(all().count(), *end - started),
        decode: per_second(during, *last - *first),
    })
}

/// When each of `tokens` tokens after `prompt` came.
fn stream(address: SocketAddr, prompt: &[u32], tokens: usize) -> Result<Vec<Instant>> {
    let body = json!({
        "prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": true,
        "cache_prompt": false, "stream": true, "return_tokens": true,
    });
    let mut answer = request(address, "POST /completion", &body.to_string())?;
    let (mut line, mut times) = (String::new(), Vec::with_capacity(tokens));
    loop {
        line.clear();
        ensure!(answer.read_line(&mut line)? > 0, "llama.cpp's server ended a stream early");
        // One event is one chunk of the body; sizes of chunks are on lines of their own.
        let Some(event) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(event.trim_end())?;
        let count = event["tokens"].as_array().map_or(0, Vec::len);
        times.extend(std::iter::repeat_n(Instant::now(), count));
        if event["stop"] == true {
            break;
        }
    }
    ensure!(times.len() == tokens, "llama.cpp's server gave {} tokens", times.len());
    Ok(times)
}

fn healthy(address: SocketAddr) -> bool {
    request(address, "GET /health", "").is_ok()
}

/// Sends a request; returns the answer after its first line, which says that all is well.
fn request(address: SocketAddr, what: &str, body: &str) -> Result<BufReader<TcpStream>> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(SILENCE))?;
    let length = body.len();
    let headers = format!("Host: {address}\r\nConnection: close\r\nContent-Length: {length}");
    write!(connection, "{what} HTTP/1.1\r\n{headers}\r\n\r\n{body}")?;
    let mut answer = BufReader::new(connection);
    let mut status = String::new();
    answer.read_line(&mut status)?;
    ensure!(status.contains(" 200 "), "llama.cpp's server answers {status:?} to {what}");
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_counts_while_all_streams_go_on() {
        let started = Instant::now();
        let at = |seconds: &[u64]| -> Vec<Instant> {
            seconds.iter().map(|&second| started + Duration::from_secs(second)).collect()
        };
        // Both go on from second 4 to 6, with 1 token of the first stream and 2 of the second.
        let rates = rates(started, &[at(&[2, 4, 6]), at(&[4, 5, 6, 8])]).unwrap();
        assert_eq!((rates.total, rates.decode), (7.0 / 8.0, 3.0 / 2.0));
    }

    #[test]
    fn rejects_streams_that_follow_each_other() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert!(rates(now, &[vec![now], vec![later, later]]).is_err());
        assert!(rates(now, &[Vec::new()]).is_err());
    }
}
