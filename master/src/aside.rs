//! Large and rare work for one client: it gives way to everybody's answers, and the memory that it leaves behind in the
//! allocator goes back to the system soon after.
use std::io;
use std::time::Duration;

use cake_platform::give_way;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;

/// How long memory that was left stays before it is given back. To give it back takes some milliseconds of one core, so
/// that what others leave meanwhile goes with it.
const PAUSE: Duration = Duration::from_secs(2);

/// Told when there is some.
static UNTIDY: Notify = Notify::const_new();

/// Does `work` on a thread of its own that gives way to others; none if it panicked.
///
/// # Errors
/// If the system gives no thread.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    telling(&UNTIDY, work).await
}

/// [`aside`], whose memory somebody else is told of.
async fn telling<T: Send + 'static>(
    untidy: &'static Notify,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().name("aside".to_owned()).spawn(move || {
        give_way();
        let done = work();
        untidy.notify_one();
        tell.send(done).ok(); // Perhaps nobody waits for it any more.
    })?;
    Ok(told.await.ok())
}

/// Something is over that took memory, much or in many pieces.
pub(crate) fn leaves_memory() {
    UNTIDY.notify_one();
}

/// Gives memory back for as long as it is polled.
pub(crate) async fn tidy() {
    cake_engine::keep_little();
    loop {
        UNTIDY.notified().await;
        tokio::time::sleep(PAUSE).await;
        spawn_blocking(cake_engine::give_back).await.ok(); // At the runtime's end it does not matter.
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_is_done_aside_comes_back_and_a_panic_is_none() {
        static OWN: Notify = Notify::const_new();
        assert_eq!(telling(&OWN, || 7).await.expect("a thread"), Some(7));
        assert!(OWN.notified().now_or_never().is_some(), "its memory is told of before");
        assert_eq!(aside(|| panic!("as it was told to")).await.expect("a thread"), None::<u32>);
    }
}
