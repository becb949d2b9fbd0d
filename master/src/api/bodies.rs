//! Bodies of requests: how many bytes of them there may be at once, and how slowly they may come.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Incoming, Bytes, HttpBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::door::Place;
use super::error::ApiError;

/// Largest body of a request.
pub(super) const MAX_BODY_BYTES: usize = 16 << 20;
/// Bytes of all larger bodies at once. Three of the largest: each is some hundred milliseconds of work, and more of
/// them at once would not be done any sooner.
const MOST_BYTES: usize = 3 * MAX_BODY_BYTES;
/// Bodies up to this size need no leave, so that nobody who sends large ones holds up a conversation. How many there
/// are at once is bounded by the connections.
pub(super) const FREE_BYTES: usize = 64 << 10;
/// How long a body may wait until others are done with: longer than [`WINDOW`], within which those that lag have left.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A body has to bring [`LEAST_BYTES`] in so much time, again and again, until it is whole.
const WINDOW: Duration = Duration::from_secs(8);
const _: () = assert!(PATIENCE.as_secs() > WINDOW.as_secs());
/// 4 KiB per second: less than any network that a person would use.
const LEAST_BYTES: usize = 32 << 10;
/// A body that has room is whole in so much time, the largest at 128 KiB per second: nobody keeps room by being slow.
/// When there is little room left, its part of the bytes has to be here after each part of the time.
const LONGEST: Duration = Duration::from_secs(128);
/// Room for the bodies of all requests.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// Bytes.
    room: Arc<Semaphore>,
    /// Whose large body is parsed: one after the other, as each has a thread of its own.
    pub(super) turn: Arc<Semaphore>,
}

/// Room for the body of one request, until nothing of its size is left of it. Whoever has the request gives it back by
/// dropping it: an answer may take much longer than what was sent is there. A small body has none.
#[derive(Debug, Default)]
pub(super) struct Room(Option<OwnedSemaphorePermit>);

impl Room {
    /// Takes another room in.
    pub(super) fn join(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(room), Some(other)) => room.merge(other),
            (room @ None, other) => *room = other,
            (Some(_), None) => {}
        }
    }

    /// Keeps so many bytes of it at most.
    pub(super) fn keep(&mut self, bytes: usize) {
        if let Some(room) = &mut self.0 {
            drop(room.split(room.num_permits().saturating_sub(bytes)));
        }
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MOST_BYTES)), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Bodies {
    /// Bytes for which room is kept.
    pub(super) fn held_bytes(&self) -> usize {
        MOST_BYTES - self.room.available_permits()
    }

    /// Room for what is not sent and yet read as a body; as little as a small one needs none.
    pub(super) async fn more(&self, bytes: usize) -> Result<Room, ApiError> {
        match bytes > FREE_BYTES {
            true => Ok(Room(Some(self.room(bytes).await?))),
            false => Ok(Room::default()),
        }
    }

    /// Waits for room, not for long.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let bytes = u32::try_from(bytes).map_err(|_| ApiError::TooLarge)?;
        match timeout(PATIENCE, self.room.clone().acquire_many_owned(bytes)).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) | Err(_) => Err(ApiError::Crowded { bytes: MOST_BYTES }),
        }
    }

    /// Whether one more of the largest bodies would have to wait.
    fn is_short(&self) -> bool {
        self.room.available_permits() < MAX_BODY_BYTES
    }

    /// All of a body, and the room that it takes. `place` hears how it goes.
    pub(super) async fn read(
        &self,
        mut body: Incoming,
        place: Option<&Place>,
    ) -> Result<(Vec<u8>, Room), ApiError> {
        let announced = body.size_hint().exact();
        let expected = announced.and_then(|bytes| usize::try_from(bytes).ok());
        // Of a body that does not say how large it is, as much as there may be.
        let expected =
            expected.unwrap_or(if announced.is_some() { usize::MAX } else { MAX_BODY_BYTES });
        if expected > MAX_BODY_BYTES {
            return Err(ApiError::TooLarge);
        }
        let (mut content, mut room) = (Vec::new(), Room::default());
        let (mut pace, mut roomed) = (Pace::new(), None);
        if let Some(place) = place {
            place.sends();
        }
        loop {
            let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let Ok(frame) = timeout_at(pace.until(), next).await else {
                let received = content.len();
                let lags = |since| lags(since, received, expected, self.is_short());
                if pace.bytes < LEAST_BYTES || roomed.is_some_and(lags) {
                    let missing = announced.map(|_| expected.saturating_sub(received));
                    return Err(ApiError::BodyStalled { received, missing });
                }
                pace = Pace::new();
                continue;
            };
            let Some(frame) = frame else { break };
            let broken = |error| ApiError::Body(format!("the body is not whole: {error}"));
            let Ok(data): Result<Bytes, _> = frame.map_err(broken)?.into_data() else { continue };
            let bytes = content.len() + data.len();
            if bytes > MAX_BODY_BYTES {
                return Err(ApiError::TooLarge);
            }
            if bytes > FREE_BYTES && roomed.is_none() {
                if let Some(place) = place {
                    place.answers(); // It is our turn now.
                }
                room = Room(Some(self.room(expected).await?));
                pace = Pace::new();
                roomed = Some(pace.since);
            }
            content.extend_from_slice(&data);
            pace.bytes += data.len();
            if let Some(place) = place {
                place.sends();
            }
        }
        if let Some(place) = place {
            place.answers();
        }
        // What it did not need is for others.
        room.keep(content.len());
        Ok((content, room))
    }
}

/// What came of a body since it was last looked at.
struct Pace {
    since: Instant,
    bytes: usize,
}

impl Pace {
    fn new() -> Self {
        Self { since: Instant::now(), bytes: 0 }
    }

    /// When it is to be looked at.
    fn until(&self) -> Instant {
        self.since + WINDOW
    }
}

/// Whether a body that has had room since then is too slow for it, with so many bytes received of those expected.
fn lags(since: Instant, received: usize, expected: usize, room_is_short: bool) -> bool {
    let elapsed = since.elapsed();
    let due = expected as u128 * elapsed.as_millis() / LONGEST.as_millis();
    elapsed >= LONGEST || (room_is_short && (received as u128) < due)
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{Stream, StreamExt, once, pending, unfold};

    use super::*;

    /// Chunks, one after each pause.
    fn body(
        chunks: usize,
        bytes: usize,
        pause: Duration,
    ) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
        unfold(0, move |sent| async move {
            tokio::time::sleep(pause).await;
            (sent < chunks).then(|| (Ok(Bytes::from(vec![b' '; bytes])), sent + 1))
        })
    }

    async fn read(bodies: &Bodies, body: Incoming) -> Result<usize, ApiError> {
        Ok(bodies.read(body, None).await?.0.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_ends_and_one_that_is_slow_does_not() {
        let bodies = Bodies::default();
        let begun = Instant::now();
        let stalls = body(3, 20_000, Duration::ZERO).chain(pending());
        let refused = read(&bodies, Incoming::from_stream(stalls)).await.expect_err("refused");
        // It gets one window more, as it began well.
        assert!(matches!(refused, ApiError::BodyStalled { received: 60_000, .. }), "{refused}");
        assert!(begun.elapsed() <= 2 * WINDOW + Duration::from_secs(1), "{:?}", begun.elapsed());
        let trickles = body(100, 1, Duration::from_secs(1));
        let refused = read(&bodies, Incoming::from_stream(trickles)).await.expect_err("refused");
        assert!(matches!(refused, ApiError::BodyStalled { .. }), "{refused}");
        // Two minutes, at 5 KiB per second.
        let slow = body(120, 5 << 10, Duration::from_secs(1));
        assert_eq!(
            read(&bodies, Incoming::from_stream(slow)).await.expect("it is steady"),
            600 << 10
        );
        assert_eq!(bodies.held_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_each_other_and_small_ones_for_nobody() {
        let bodies = Bodies::default();
        let large =
            || once(async { Ok::<_, std::io::Error>(Bytes::from(vec![0; FREE_BYTES + 1])) });
        let open = |bodies: Bodies| async move {
            bodies
                .read(
                    Incoming::from_stream(large().chain(body(1, 9, Duration::from_secs(1)))),
                    None,
                )
                .await
        };
        let held: Vec<_> = (0..3).map(|_| tokio::spawn(open(bodies.clone()))).collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(bodies.held_bytes(), MOST_BYTES);
        let small = Incoming::from(vec![0; FREE_BYTES]);
        assert_eq!(read(&bodies, small).await.expect("no leave is needed"), FREE_BYTES);
        // The fourth finds room when the first are done.
        let fourth = open(bodies.clone()).await.expect("it waits").1;
        assert_eq!(bodies.held_bytes(), 4 * (FREE_BYTES + 10));
        let mut rooms = Vec::new();
        for held in held {
            rooms.push(held.await.expect("no panic").expect("whole").1);
        }
        drop((rooms, fourth));
        assert_eq!(bodies.held_bytes(), 0);
        let _all = bodies.room(MOST_BYTES).await.expect("free");
        let refused = read(&bodies, Incoming::from_stream(large())).await.expect_err("refused");
        assert!(matches!(refused, ApiError::Crowded { .. }), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_keeps_room_by_being_slow() {
        let bodies = Bodies::default();
        // 8 KiB per second after it has got its room, without an end: nobody else needs it, and yet it ends.
        let slow = || body(10_000, FREE_BYTES / 8, Duration::from_secs(1));
        let begun = Instant::now();
        let refused = read(&bodies, Incoming::from_stream(slow())).await.expect_err("refused");
        assert!(matches!(refused, ApiError::BodyStalled { .. }), "{refused}");
        assert!(begun.elapsed() > LONGEST, "{:?}", begun.elapsed());
        assert!(begun.elapsed() <= LONGEST + 3 * WINDOW, "{:?}", begun.elapsed());
        // Three of them take all there is, for no longer than another one waits.
        let open =
            |bodies: Bodies| async move { read(&bodies, Incoming::from_stream(slow())).await };
        let held: Vec<_> = (0..3).map(|_| tokio::spawn(open(bodies.clone()))).collect();
        let all_held = async {
            while bodies.held_bytes() < MOST_BYTES {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(LONGEST, all_held).await.expect("they get their room");
        let quick = Incoming::from(vec![0; MAX_BODY_BYTES]);
        assert_eq!(read(&bodies, quick).await.expect("there is room soon"), MAX_BODY_BYTES);
        for held in held {
            let refused = held.await.expect("no panic").expect_err("refused");
            assert!(matches!(refused, ApiError::BodyStalled { .. }), "{refused}");
        }
        assert_eq!(bodies.held_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_given_back_as_it_is_needed_less() {
        let bodies = Bodies::default();
        let large = Incoming::from(vec![0; 3 * FREE_BYTES]);
        let (_, mut room) = bodies.read(large, None).await.expect("whole");
        assert_eq!(bodies.held_bytes(), 3 * FREE_BYTES);
        room.keep(4 * FREE_BYTES);
        assert_eq!(bodies.held_bytes(), 3 * FREE_BYTES);
        room.keep(FREE_BYTES);
        assert_eq!(bodies.held_bytes(), FREE_BYTES);
        // It takes more in.
        room.join(bodies.more(FREE_BYTES + 1).await.expect("room"));
        room.join(bodies.more(FREE_BYTES).await.expect("none is needed"));
        assert_eq!(bodies.held_bytes(), 2 * FREE_BYTES + 1);
        drop(room);
        let mut none = Room::default();
        none.join(bodies.more(FREE_BYTES + 1).await.expect("room"));
        assert_eq!(bodies.held_bytes(), FREE_BYTES + 1);
        drop(none);
        assert_eq!(bodies.held_bytes(), 0);
    }

    #[tokio::test]
    async fn one_that_is_too_large_is_refused_before_it_is_read() {
        let bodies = Bodies::default();
        let large = Incoming::from(vec![0; MAX_BODY_BYTES + 1]);
        assert!(matches!(read(&bodies, large).await, Err(ApiError::TooLarge)));
        let endless = Incoming::from_stream(body(1000, 1 << 20, Duration::ZERO));
        assert!(matches!(read(&bodies, endless).await, Err(ApiError::TooLarge)));
    }
}
