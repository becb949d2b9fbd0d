//! A link between two machines in bad weather: slow, far, stalling, breaking.
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::acceptor::Acceptor;

/// Bytes moved at once: some ten packets.
const PIECE: usize = 16 << 10;
/// Pieces on their way: the buffer of a router.
const PIECES: usize = 16;
/// A piece of so many bytes has something else than the headers of a message in its middle.
const LARGE: usize = 1 << 10;

/// What happens to bytes. The default lets them pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Time on the way, each way.
    pub latency: Duration,
    /// So much more or less of it.
    pub jitter: Duration,
    /// Nothing moves for so long, again and again: every first of these times for the second.
    pub stalls: Option<(Duration, Duration)>,
    /// Most bytes in a second, each way of each connection.
    pub bytes_per_second: Option<u64>,
    /// A connection is reset after so many bytes on average.
    pub reset_after: Option<u64>,
    /// Four bytes in the middle of large pieces of numbers arrive as others; text comes as it is, also with numbers in it.
    pub garble: bool,
}

/// Forwards every connection to one address, through the present weather. Closed when dropped.
#[derive(Debug)]
pub struct Link {
    /// What is told instead of the worker's address.
    pub address: String,
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    weather: Mutex<Weather>,
    random: AtomicU64,
    /// Connections so far, and those that are open, by their number.
    made: AtomicU64,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    resets: AtomicU64,
    /// Connections are closed at once after so many.
    allowed: AtomicU64,
    since: Instant,
}

impl Link {
    /// A link to `target` (HOST:PORT) in fair weather; what is random follows from `seed`.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(target: &str, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            target: Mutex::new(target.to_owned()),
            weather: Mutex::default(),
            random: AtomicU64::new(seed | 1),
            made: AtomicU64::new(0),
            open: Mutex::default(),
            resets: AtomicU64::new(0),
            allowed: AtomicU64::new(u64::MAX),
            since: Instant::now(),
        });
        let accepting = shared.clone();
        let acceptor = Acceptor::start(move |client| accepting.accept(client));
        Self { address: acceptor.address(), shared, acceptor }
    }

    /// The weather from now on.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().expect("no holder panics") = weather;
    }

    /// Leads to another address from now on: the worker was started again.
    pub fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.shared.target.lock().expect("no holder panics"));
    }

    /// Connections made so far.
    pub fn made(&self) -> u64 {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// Connections that the weather reset so far.
    pub fn resets(&self) -> u64 {
        self.shared.resets.load(Ordering::SeqCst)
    }

    /// Resets the open connections whose number is at least this one.
    pub fn cut_from(&self, number: u64) {
        let open: Vec<u64> =
            self.shared.open.lock().expect("no holder panics").keys().copied().collect();
        open.into_iter().filter(|open| *open >= number).for_each(|open| self.shared.reset(open));
    }

    /// Closes every connection at once that comes after so many more; those that are open stay.
    pub fn allow_more(&self, connections: u64) {
        self.shared.allowed.store(self.made() + connections, Ordering::SeqCst);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.acceptor.stop();
        self.cut_from(0);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        match self.made.load(Ordering::SeqCst) >= self.allowed.load(Ordering::SeqCst) {
            true => drop(client.shutdown(Shutdown::Both)),
            false => drop(self.forward(client)), // A worker that is gone: the connection closes.
        }
    }

    fn forward(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let target = self.target.lock().expect("no holder panics").clone();
        let worker = TcpStream::connect(target)?;
        client.set_nodelay(true)?;
        worker.set_nodelay(true)?;
        let number = self.made.fetch_add(1, Ordering::SeqCst);
        let both = [client.try_clone()?, worker.try_clone()?];
        self.open.lock().expect("no holder panics").insert(number, both);
        let (from, to) = (client.try_clone()?, worker.try_clone()?);
        self.start(number, from, to);
        self.start(number, worker, client);
        Ok(())
    }

    /// One direction: what is read waits its time, then it is written.
    fn start(self: &Arc<Self>, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let (pieces, due): (SyncSender<(Instant, Vec<u8>)>, Receiver<_>) = sync_channel(PIECES);
        let shared = self.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; PIECE];
            let mut last = Instant::now();
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if shared.breaks(count as u64) {
                    shared.resets.fetch_add(1, Ordering::SeqCst);
                    shared.reset(number);
                    return;
                }
                if count > LARGE && shared.now().garble {
                    // Of numbers about a third are letters and signs; of what has names among its numbers, more.
                    let letters = buffer[..count].iter().filter(|byte| byte.is_ascii_graphic());
                    if 2 * letters.count() < count {
                        buffer[count / 2..][..4].iter_mut().for_each(|byte| *byte ^= 0x7f);
                    }
                }
                last = shared.arrival(last, count); // Nothing overtakes.
                if pieces.send((last, buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        let shared = self.clone();
        std::thread::spawn(move || {
            for (at, piece) in due {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                if to.write_all(&piece).is_err() {
                    break;
                }
            }
            to.shutdown(Shutdown::Both).ok();
            shared.open.lock().expect("no holder panics").remove(&number);
        });
    }

    /// When bytes that are sent now arrive, the last ones before them having arrived at `last`.
    fn arrival(&self, last: Instant, count: usize) -> Instant {
        let weather = self.now();
        let mut at = Instant::now() + weather.latency;
        if !weather.jitter.is_zero() {
            let spread = 2 * weather.jitter.as_micros() as u64;
            at += Duration::from_micros(self.random() % spread);
            at -= weather.jitter.min(weather.latency);
        }
        if let Some((every, length)) = weather.stalls {
            let phase = self.since.elapsed().as_micros() % every.as_micros().max(1);
            let phase = Duration::from_micros(phase as u64);
            if phase < length {
                at += length - phase;
            }
        }
        at = at.max(last);
        if let Some(rate) = weather.bytes_per_second {
            let begin = last.max(Instant::now());
            at = at.max(begin + Duration::from_secs_f64(count as f64 / rate as f64));
        }
        at
    }

    /// As peers that crash do: what is on its way is lost, and both ends hear of it at once.
    fn reset(&self, number: u64) {
        let both = self.open.lock().expect("no holder panics").remove(&number);
        for stream in both.into_iter().flatten() {
            set_socket_linger(&stream, Some(Duration::ZERO)).ok();
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn now(&self) -> Weather {
        *self.weather.lock().expect("no holder panics")
    }

    /// Whether the connection is reset within so many bytes.
    fn breaks(&self, bytes: u64) -> bool {
        self.now().reset_after.is_some_and(|mean| self.random() % mean.max(1) < bytes)
    }

    /// xorshift64*, by Vigna (arXiv:1402.6246).
    fn random(&self) -> u64 {
        let step = |mut x: u64| {
            x ^= x >> 12;
            x ^= x << 25;
            x ^ (x >> 27)
        };
        let update =
            self.random.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(step(x)));
        step(update.unwrap_or(1)).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}
