//! A port of this machine whose connections are somebody's.
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(30);

/// Accepts connections on a thread of its own. Closed when dropped.
#[derive(Debug)]
pub(crate) struct Acceptor {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Hands each connection to a port that the system chooses to `each`.
    ///
    /// # Panics
    /// If there is no port.
    pub(crate) fn start(each: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let closed = Arc::new(AtomicBool::new(false));
        let over = closed.clone();
        let thread = std::thread::spawn(move || {
            let open = |_: &_| !over.load(Ordering::SeqCst);
            listener.incoming().take_while(open).filter_map(Result::ok).for_each(each);
        });
        Self { address, closed, thread: Some(thread) }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Accepts nothing more.
    pub(crate) fn stop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return };
        TcpStream::connect_timeout(&self.address, CONNECT).ok(); // Wakes it.
        thread.join().ok();
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}
