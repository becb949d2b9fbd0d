//! How a person or the system asks a process to stop.
use std::task::Poll;

use futures_util::stream::{Stream, poll_fn};

/// Each Ctrl-C and each request to terminate from this call on; those that nobody has taken yet count as one. Never
/// ends; a signal that cannot be had ends the process, as the system does by itself.
///
/// # Panics
/// Outside a runtime.
#[cfg(unix)]
pub fn interrupts() -> impl Stream<Item = ()> + Unpin {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let mut signals: Vec<_> = signals.into_iter().flatten().collect();
    poll_fn(move |cx| match signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
        true => Poll::Ready(Some(())),
        false => Poll::Pending,
    })
}

/// Each Ctrl-C from this call on; those that nobody has taken yet count as one. Never ends; if they cannot be had they
/// end the process, as the system does by itself.
///
/// # Panics
/// Outside a runtime.
#[cfg(windows)]
pub fn interrupts() -> impl Stream<Item = ()> + Unpin {
    let mut signal = tokio::signal::windows::ctrl_c().ok();
    poll_fn(move |cx| match signal.as_mut().is_some_and(|signal| signal.poll_recv(cx).is_ready()) {
        true => Poll::Ready(Some(())),
        false => Poll::Pending,
    })
}
