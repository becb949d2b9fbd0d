//! A TCP proxy between a master and a worker: counts bytes, and fails when it is told to.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::acceptor::Acceptor;

/// Bytes moved at once.
const BUFFER: usize = 256 << 10;
const CONNECT: Duration = Duration::from_secs(30);

/// Forwards every connection to one address, on threads of its own. Closed when dropped.
#[derive(Debug)]
pub struct CountingProxy {
    /// What a master is told instead of the worker's address.
    pub address: String,
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

#[derive(Debug)]
struct Shared {
    target: String,
    to_worker: AtomicU64,
    to_master: AtomicU64,
    connections: AtomicU64,
    /// Connections are closed at once after so many.
    allowed: AtomicU64,
    /// Directions that still move bytes: two per open connection.
    pumps: AtomicU64,
    /// Connections are closed once so many bytes went to the worker.
    cut_at: AtomicU64,
    /// Nothing more moves to the worker once so many bytes did.
    hold_at: AtomicU64,
    refuse: AtomicBool,
    breaking: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    moved: Condvar,
    gate: Mutex<()>,
}

impl CountingProxy {
    /// A proxy to `target` (HOST:PORT).
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(target: &str) -> Self {
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            to_worker: AtomicU64::new(0),
            to_master: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            allowed: AtomicU64::new(u64::MAX),
            pumps: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            hold_at: AtomicU64::new(u64::MAX),
            refuse: AtomicBool::new(false),
            breaking: AtomicBool::new(false),
            open: Mutex::new(Vec::new()),
            moved: Condvar::new(),
            gate: Mutex::new(()),
        });
        let accepting = shared.clone();
        let acceptor = Acceptor::start(move |client| accepting.accept(client));
        Self { address: acceptor.address(), shared, acceptor }
    }

    /// Bytes that went to the worker so far.
    pub fn to_worker(&self) -> u64 {
        self.shared.to_worker.load(Ordering::SeqCst)
    }

    /// Bytes that came from the worker so far.
    pub fn to_master(&self) -> u64 {
        self.shared.to_master.load(Ordering::SeqCst)
    }

    /// Connections that were forwarded so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.shared.pumps.load(Ordering::SeqCst).div_ceil(2)
    }

    /// Counts from 0 again.
    pub fn reset(&self) {
        self.shared.to_worker.store(0, Ordering::SeqCst);
        self.shared.to_master.store(0, Ordering::SeqCst);
    }

    /// Breaks every connection once `bytes` in all went to the worker, and all later ones.
    pub fn cut_at(&self, bytes: u64) {
        self.shared.cut_at.store(bytes, Ordering::SeqCst);
    }

    /// Lets nothing more through to the worker once `bytes` in all went there; connections stay.
    pub fn hold_at(&self, bytes: u64) {
        self.shared.hold_at.store(bytes, Ordering::SeqCst);
        self.shared.moved.notify_all();
    }

    /// Breaks every open connection now and waits until nothing of them moves any more.
    ///
    /// # Panics
    /// If that takes too long.
    #[track_caller]
    pub fn break_all(&self) {
        self.shared.breaking.store(true, Ordering::SeqCst);
        self.shared.moved.notify_all();
        self.shared.close_all();
        crate::until("the proxy's connections to end", CONNECT, || {
            self.shared.pumps.load(Ordering::SeqCst) == 0
        });
        self.shared.breaking.store(false, Ordering::SeqCst);
    }

    /// Closes every connection at once that comes after so many more; those that are open stay.
    pub fn allow_more(&self, connections: u64) {
        self.shared.allowed.store(self.connections() + connections, Ordering::SeqCst);
    }

    /// Closes new connections at once; those that are open stay.
    pub fn refuse_new(&self, refuse: bool) {
        self.shared.refuse.store(refuse, Ordering::SeqCst);
    }

    /// Forwards everything again, and counts on.
    pub fn heal(&self) {
        self.shared.cut_at.store(u64::MAX, Ordering::SeqCst);
        self.shared.allowed.store(u64::MAX, Ordering::SeqCst);
        self.hold_at(u64::MAX);
        self.refuse_new(false);
    }

    /// Waits until so many bytes went to the worker.
    ///
    /// # Panics
    /// If they do not in time.
    #[track_caller]
    pub fn wait_for(&self, bytes: u64, limit: Duration) {
        crate::until(&format!("{bytes} bytes to the worker"), limit, || self.to_worker() >= bytes);
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.acceptor.stop();
        self.shared.breaking.store(true, Ordering::SeqCst);
        self.shared.moved.notify_all();
        self.shared.close_all();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, client: TcpStream) {
        let broken = self.to_worker.load(Ordering::SeqCst) >= self.cut_at.load(Ordering::SeqCst);
        let allowed = self.allowed.load(Ordering::SeqCst);
        let spent = self.connections.load(Ordering::SeqCst) >= allowed;
        match broken || spent || self.refuse.load(Ordering::SeqCst) {
            true => drop(client.shutdown(Shutdown::Both)),
            false => drop(self.forward(client)), // A worker that is gone: the connection closes.
        }
    }

    /// Starts the two directions of one connection.
    fn forward(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let worker = TcpStream::connect(&self.target)?;
        client.set_nodelay(true)?;
        worker.set_nodelay(true)?;
        self.connections.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().expect("no holder panics");
        open.extend([client.try_clone()?, worker.try_clone()?]);
        drop(open);
        let (from, to) = (client.try_clone()?, worker.try_clone()?);
        self.start_pump(from, to, true);
        self.start_pump(worker, client, false);
        Ok(())
    }

    fn start_pump(self: &Arc<Self>, from: TcpStream, to: TcpStream, towards_worker: bool) {
        self.pumps.fetch_add(1, Ordering::SeqCst);
        let shared = self.clone();
        std::thread::spawn(move || {
            shared.pump(from, to, towards_worker);
            shared.pumps.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Moves bytes one way until either side ends or the connection is cut.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, towards_worker: bool) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let allowed = if towards_worker { self.allowance(rest.len()) } else { rest.len() };
                if allowed == 0 {
                    self.close_all();
                    return;
                }
                let (now, later) = rest.split_at(allowed);
                if to.write_all(now).is_err() {
                    from.shutdown(Shutdown::Both).ok();
                    return;
                }
                rest = later;
                if !towards_worker {
                    self.to_master.fetch_add(now.len() as u64, Ordering::SeqCst);
                }
            }
        }
        to.shutdown(Shutdown::Both).ok();
        from.shutdown(Shutdown::Both).ok();
    }

    /// How many of `wanted` bytes may go to the worker now, counted as gone; waits while held; 0 to cut.
    fn allowance(&self, wanted: usize) -> usize {
        let mut gate = self.gate.lock().expect("no holder panics");
        loop {
            if self.breaking.load(Ordering::SeqCst) {
                return 0;
            }
            let sent = self.to_worker.load(Ordering::SeqCst);
            let until = |limit: &AtomicU64| limit.load(Ordering::SeqCst).saturating_sub(sent);
            let (cut, hold) = (until(&self.cut_at), until(&self.hold_at));
            if cut == 0 {
                return 0;
            }
            let allowed = (wanted as u64).min(cut).min(hold);
            if allowed > 0 {
                self.to_worker.fetch_add(allowed, Ordering::SeqCst);
                return allowed as usize;
            }
            let waited = self.moved.wait_timeout(gate, Duration::from_millis(50));
            gate = waited.expect("no holder panics").0;
        }
    }

    fn close_all(&self) {
        for stream in self.open.lock().expect("no holder panics").drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}
