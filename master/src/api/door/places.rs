//! Who is inside, as far as connections go, and who leaves when there is no room for one more.
//!
//! ```text
//! Waits ──its first bytes──▶ Waits, has begun ──a whole head──▶ Answers ⇄ Sends (its body)
//!   ▲                                                             ├──▶ Watches (events without an end)
//!   └──────────────────── the answer is over ─────────────────────┘      any but Answers ──▶ Gone
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Bounds;
use crate::aside::leaves_memory;

/// How long a body may stop on its way while others find no place.
const PAUSE: Duration = Duration::from_secs(1);

/// All places for connections.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    places: BTreeMap<u64, Arc<Place>>,
}

/// What one connection is doing.
pub(in crate::api) struct Place {
    number: u64,
    whose: IpAddr,
    doing: Mutex<Doing>,
    gone: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// No request is under way.
    Waits { since: Instant, what: Wait },
    /// A request is under way, and the client sends its body; the last bytes came then.
    Sends { since: Instant },
    /// A request is under way, and all of it is here.
    Answers,
    /// A request is under way whose answer has no end of its own: the place is free to be taken.
    Watches { since: Instant },
    /// Another one has its place.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// For the first byte of the first request.
    First,
    /// For the rest of a head.
    Head,
    /// For another request.
    Next,
}

/// A place while its connection lives.
pub(super) struct Guest {
    places: Arc<Places>,
    pub(super) place: Arc<Place>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: Mutex::default() })
    }

    /// A place for a connection from this address, and whether another one had to leave for it; none if all are taken
    /// by requests whose answers have an end. Whoever has had nothing to do for longest leaves first; of those who
    /// could take places from others, their own.
    pub(super) fn admit(self: &Arc<Self>, from: IpAddr, now: Instant) -> Option<(Guest, bool)> {
        let whose = neighbourhood(from);
        let mut taken = self.taken();
        let theirs = taken.places.values().filter(|place| place.whose == whose).count();
        let has_enough = theirs >= self.most_of(whose);
        let full = has_enough || taken.places.len() >= self.most;
        if full {
            let number = leaves(&taken, now, |place| !has_enough || place.whose == whose)?;
            taken.places.remove(&number);
        }
        let number = taken.next;
        taken.next += 1;
        let doing = Doing::Waits { since: now, what: Wait::First };
        let place =
            Arc::new(Place { number, whose, doing: Mutex::new(doing), gone: Notify::new() });
        taken.places.insert(number, place.clone());
        Some((Guest { places: self.clone(), place }, full))
    }

    /// Has whoever would leave first leave; false if nobody can.
    pub(super) fn make_room(&self, now: Instant) -> bool {
        let mut taken = self.taken();
        let leaves = leaves(&taken, now, |_| true);
        leaves.is_some_and(|number| taken.places.remove(&number).is_some())
    }

    /// Places that are taken.
    pub(super) fn count(&self) -> usize {
        self.taken().places.len()
    }

    /// Most places of one neighbourhood: half, so that no machine keeps others out; this machine's own programs, of
    /// which a proxy may be one, leave an eighth.
    fn most_of(&self, whose: IpAddr) -> usize {
        let most = if whose.is_loopback() { self.most - self.most / 8 } else { self.most / 2 };
        most.max(1)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Each change leaves it whole.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has one of those that `may` leave, and that would leave first, leave.
fn leaves(taken: &Taken, now: Instant, may: impl Fn(&Place) -> bool) -> Option<u64> {
    let candidates = taken.places.values().filter(|place| may(place));
    let candidates =
        candidates.filter_map(|place| Some((place.doing().leaves(now)?, place.number)));
    let mut candidates: Vec<_> = candidates.collect();
    candidates.sort_unstable();
    // One that has just begun to do something stays.
    let mut numbers = candidates.into_iter().map(|(_, number)| number);
    numbers.find(|number| taken.places.get(number).is_some_and(|place| place.leave(now)))
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.places.taken().places.remove(&self.place.number);
        leaves_memory(); // What was read and written over it, a little of many.
    }
}

impl Doing {
    /// Whether it may be ended for another one, and in which order: those without a request first, then those whose
    /// bodies do not come, each the one first for which nothing has happened for longest, and then whoever has watched
    /// for longest.
    fn leaves(self, now: Instant) -> Option<(u8, Instant)> {
        match self {
            Self::Waits { since, .. } => Some((0, since)),
            Self::Sends { since } if now.duration_since(since) >= PAUSE => Some((1, since)),
            Self::Watches { since } => Some((2, since)),
            Self::Sends { .. } | Self::Answers | Self::Gone => None,
        }
    }
}

impl Place {
    /// Whether whoever is there is a program of this machine.
    pub(in crate::api) fn is_of_this_machine(&self) -> bool {
        self.whose.is_loopback()
    }

    /// Bytes came.
    pub(super) fn heard(&self) {
        let mut doing = self.doing();
        if let Doing::Waits { what: Wait::First | Wait::Next, .. } = *doing {
            *doing = Doing::Waits { since: Instant::now(), what: Wait::Head };
        }
    }

    /// A whole head came; false if it is too late for it.
    pub(super) fn begins(&self) -> bool {
        let mut doing = self.doing();
        if *doing == Doing::Gone {
            return false;
        }
        *doing = Doing::Answers;
        true
    }

    /// More of a request's body is waited for from now on.
    pub(in crate::api) fn sends(&self) {
        self.goes_on(Doing::Sends { since: Instant::now() });
    }

    /// All of a request is here.
    pub(in crate::api) fn answers(&self) {
        self.goes_on(Doing::Answers);
    }

    /// The answer has no end.
    pub(in crate::api) fn watches(&self) {
        self.goes_on(Doing::Watches { since: Instant::now() });
    }

    /// The answer is over.
    pub(in crate::api) fn rests(&self) {
        self.goes_on(Doing::Waits { since: Instant::now(), what: Wait::Next });
    }

    /// Until when it may go on waiting, if it waits. Once the server is `ending`, nobody who has not asked yet is waited
    /// for; others may have an answer on its way, after which hyper closes the connection.
    pub(super) fn until(&self, bounds: &Bounds, ending: bool) -> Option<Instant> {
        match *self.doing() {
            Doing::Waits { since, what: Wait::First | Wait::Head } if ending => Some(since + PAUSE),
            Doing::Waits { since, what: Wait::First | Wait::Head } => Some(since + bounds.head),
            Doing::Waits { since, what: Wait::Next } => Some(since + bounds.idle),
            Doing::Sends { .. } | Doing::Answers | Doing::Watches { .. } | Doing::Gone => None,
        }
    }

    /// Completes when another connection has its place.
    pub(super) async fn gone(&self) {
        self.gone.notified().await;
    }

    fn leave(&self, now: Instant) -> bool {
        let mut doing = self.doing();
        let leaves = doing.leaves(now).is_some();
        if leaves {
            *doing = Doing::Gone;
            self.gone.notify_one();
        }
        leaves
    }

    fn goes_on(&self, next: Doing) {
        let mut doing = self.doing();
        if *doing != Doing::Gone {
            *doing = next;
        }
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        // Each change is one assignment.
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those who could have this address as well: of IPv6, a network of one household.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from(address) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Seconds after the first moment.
    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    async fn gone(guest: &Guest) {
        let limit = Duration::from_secs(1);
        tokio::time::timeout(limit, guest.place.gone()).await.expect("it has to leave");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_waited_longest_leaves_and_whoever_asks_stays() {
        let (places, start) = (Places::new(8), Instant::now());
        let mut guests: Vec<Guest> = (0..7)
            .map(|number| places.admit(HERE, at(start, number)).expect("there is room").0)
            .collect();
        assert!(guests[0].place.begins(), "it asks");
        let (eighth, made_room) = places.admit(HERE, at(start, 7)).expect("an idle one leaves");
        assert!(made_room);
        gone(&guests[1]).await;
        assert!(!guests[1].place.begins(), "too late");
        guests.push(eighth);
        for guest in &guests[2..] {
            assert!(guest.place.begins());
        }
        assert!(places.admit(HERE, at(start, 8)).is_none(), "all are busy");
        let (other, made_room) = places.admit(ip("192.168.1.2"), at(start, 8)).expect("reserved");
        assert!(!made_room);
        assert_eq!(places.count(), 8);
        drop(other);
        guests[3].place.rests();
        places.admit(HERE, at(start, 9)).expect("one has nothing to do any more");
        gone(&guests[3]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_leaves_after_those_without_a_request() {
        let (places, start) = (Places::new(4), Instant::now());
        let guests: Vec<Guest> =
            (0..3).map(|_| places.admit(HERE, start).expect("there is room").0).collect();
        let other = places.admit(ip("10.0.0.1"), at(start, 1)).expect("there is room").0;
        for guest in &guests {
            assert!(guest.place.begins());
            guest.place.sends();
        }
        // All stalled for as long, but one of them has no request at all.
        places.admit(ip("10.0.0.2"), at(start, 5)).expect("one leaves");
        gone(&other).await;
        let two = places.admit(ip("10.0.0.2"), at(start, 5)).expect("its place is free again").0;
        assert!(two.place.begins());
        places.admit(ip("10.0.0.3"), at(start, 5)).expect("one leaves");
        gone(&guests[0]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_only_watches_makes_room_after_all_others_and_answers_do_not() {
        let (places, start) = (Places::new(8), Instant::now());
        let admit = |seconds| places.admit(HERE, at(start, seconds));
        let guests: Vec<Guest> = (0..7).map(|_| admit(0).expect("there is room").0).collect();
        assert!(guests[..6].iter().all(|guest| guest.place.begins()));
        for guest in &guests[..4] {
            guest.place.watches();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        guests[5].place.sends();
        let mut more = Vec::new();
        // One that is idle, then one whose body does not come, then those that watch.
        for leaves in [6, 5, 0, 1, 2, 3] {
            let guest = admit(60).expect("one leaves").0;
            assert!(guest.place.begins());
            gone(&guests[leaves]).await;
            more.push(guest);
        }
        assert!(admit(60).is_none(), "the others have answers that end");
        // What is over waits as any other does.
        more[0].place.watches();
        more[0].place.rests();
        admit(120).expect("it has nothing to do");
        gone(&more[0]).await;
    }

    #[test]
    fn one_machine_does_not_keep_others_out() {
        let (places, start) = (Places::new(8), Instant::now());
        let admit = |address: &str| places.admit(ip(address), start);
        let network = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:1", "2001:db8::3"];
        let guests: Vec<Guest> = network.iter().map(|from| admit(from).expect("room").0).collect();
        assert!(guests.iter().all(|guest| guest.place.begins()));
        assert!(admit("2001:db8::4").is_none(), "half of all places are theirs");
        assert!(admit("2001:db8:0:1::1").is_some());
        assert!(admit("::ffff:10.0.0.1").is_some());
        assert_eq!(neighbourhood(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
    }
}
