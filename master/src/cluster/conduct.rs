//! How members have behaved, and when each may be given layers again.
//!
//! ```text
//!            lies, makes no numbers                third time
//! trusted ───────────────────────────▶ set aside ────────────▶ in quarantine
//!    ▲        keeps steps to itself        │ the pause is over,          │ for long, or until
//!    └─────────────────────────────────────┴ longer each time ◀──────────┘ it is started again
//! ```
//!
//! Who was merely lost is taken again at once; who was lost several times lately is avoided while others do, and
//! waited for while none do. All of it is numbers: the time is passed in, and what is random follows from a seed.
use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

/// So many times a member may say what cannot be; then it is in quarantine.
const LIES: u32 = 3;
/// First pause; each further one is so many times as long, up to the longest.
const LIE_PAUSE: Growth = Growth { first: Duration::from_millis(500), times: 4, most: HOUR };
const KEPT_PAUSE: Growth = Growth { first: Duration::from_millis(500), times: 2, most: HOUR };
const LOST_PAUSE: Growth = Growth { first: Duration::from_secs(1), times: 2, most: MINUTE };
const HOP_PAUSE: Growth = Growth { first: Duration::from_secs(30), times: 2, most: HOUR };
const QUARANTINE: Growth = Growth { first: Duration::from_secs(1800), times: 2, most: DAY };
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A member that served for so long, or for as long as its last pause, if that was longer, has half as many losses or
/// steps kept to its name as before. Lies are not forgotten.
const LATELY: Duration = Duration::from_secs(120);
/// Ways between processes that are remembered, at most: those not used for the longest time go first.
const MOST_HOPS: usize = 1024;
/// Pauses are up to this part shorter or longer, so that many masters or members do not go on in step.
const JITTER: f64 = 0.2;

/// What a member did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offence {
    /// It was gone, or could not be used.
    Lost,
    /// It kept a step to itself.
    Kept,
    /// It said what no worker may say.
    Malformed,
    /// It made something else than numbers.
    NotFinite,
}

impl Offence {
    /// Its word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Kept => "swallowed",
            Self::Malformed => "malformed",
            Self::NotFinite => "not_finite",
        }
    }
}

/// What follows from an offence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// It is taken again as soon as it is there.
    None,
    /// It is given layers only where others cannot hold them, for so long.
    Avoided(Duration),
    /// It is given no layers for so long.
    SetAside(Duration),
    /// The same, until it is started again.
    Quarantine(Duration),
}

/// A member that is given no layers for now, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetAside {
    /// Its name.
    pub worker: String,
    /// Whether it is in quarantine: until then, unless it is started again.
    pub quarantine: bool,
    /// For so many seconds more.
    pub seconds: u64,
    /// What it did last.
    pub reason: String,
}

/// A pause that grows each time.
#[derive(Clone, Copy)]
struct Growth {
    first: Duration,
    times: u32,
    most: Duration,
}

impl Growth {
    /// The pause of the time with this number, from 1 on.
    fn pause(self, time: u32) -> Duration {
        let factor = self.times.saturating_pow(time.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.most)
    }
}

/// How all members have behaved. Times are since some beginning.
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    seed: u64,
    members: HashMap<String, Record>,
    /// Ways between two processes of workers that let nothing through.
    hops: HashMap<(String, String), Hop>,
}

#[derive(Clone, Debug, Default)]
struct Record {
    lies: u32,
    kept: Streak,
    lost: Streak,
    /// When it was lost last.
    lost_at: Duration,
    /// Layers that nobody else can hold again from then on, after losses.
    needed_from: Duration,
    /// Layers again from then on, after lies.
    lied_until: Duration,
    quarantine: Option<Quarantine>,
    reason: String,
}

/// How often something happened that is forgotten by and by.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    times: u32,
    /// The pause that followed the last time.
    pause: Duration,
    /// When that is over.
    until: Duration,
}

impl Streak {
    /// Once more; how often by now. The time in pauses is not one of good service.
    fn again(&mut self, now: Duration) -> u32 {
        let served = now.saturating_sub(self.until).as_secs_f64();
        let halvings = (served / LATELY.max(self.pause).as_secs_f64()) as u32;
        self.times = self.times.checked_shr(halvings).unwrap_or(0).saturating_add(1);
        self.times
    }

    /// A pause begins.
    fn rests(&mut self, pause: Duration, now: Duration) {
        (self.pause, self.until) = (pause, now + pause);
    }
}

#[derive(Clone, Debug)]
struct Quarantine {
    until: Duration,
    /// The process that it is about.
    instance: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hop {
    breaks: u32,
    until: Duration,
}

impl Conduct {
    /// Nobody did anything yet; what is random follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Member `worker_id`, whose process is `instance`, did this.
    pub fn note(
        &mut self,
        worker_id: &str,
        instance: &str,
        offence: Offence,
        reason: &str,
        now: Duration,
    ) -> Consequence {
        let seed = self.seed;
        let record = self.members.entry(worker_id.to_owned()).or_default();
        reason.clone_into(&mut record.reason);
        let jittered = |pause, time| jittered(pause, &[seed, name_number(worker_id), time]);
        match offence {
            Offence::Lost => {
                let times = record.lost.again(now);
                let before = std::mem::replace(&mut record.lost_at, now);
                if times < 2 {
                    record.lost.rests(Duration::ZERO, now);
                    return Consequence::None;
                }
                let pause = jittered(LOST_PAUSE.pause(times - 1), u64::from(times));
                record.lost.rests(pause, now);
                // Where there is no other, one that served that long is worth having again at once.
                record.needed_from = before + pause;
                Consequence::Avoided(pause)
            }
            Offence::Kept => {
                let times = record.kept.again(now);
                let pause = jittered(KEPT_PAUSE.pause(times), u64::from(times));
                record.kept.rests(pause, now);
                Consequence::SetAside(pause)
            }
            Offence::Malformed | Offence::NotFinite => {
                record.lies = record.lies.saturating_add(1);
                let times = record.lies;
                // Whoever is started again begins anew, and yet not as if nothing had been.
                let further = if times < LIES { times } else { times - (LIES - 1) };
                let pause = jittered(LIE_PAUSE.pause(further), u64::from(times));
                record.lied_until = record.lied_until.max(now + pause);
                if times < LIES {
                    return Consequence::SetAside(pause);
                }
                let long = jittered(QUARANTINE.pause(times - (LIES - 1)), u64::from(times));
                let instance = instance.to_owned();
                record.quarantine = Some(Quarantine { until: now + long, instance });
                Consequence::Quarantine(long)
            }
        }
    }

    /// Whether a member may be given no layers now.
    pub fn is_set_aside(&self, worker_id: &str, instance: &str, now: Duration) -> bool {
        self.members.get(worker_id).is_some_and(|record| record.until(instance) > now)
    }

    /// Whether a member is given layers only where others cannot hold them.
    pub fn is_avoided(&self, worker_id: &str, now: Duration) -> bool {
        self.members.get(worker_id).is_some_and(|record| record.lost.until > now)
    }

    /// For how long a member is not even given those yet; zero if it is.
    pub fn spared_for(&self, worker_id: &str, now: Duration) -> Duration {
        self.members.get(worker_id).map_or(Duration::ZERO, |it| it.needed_from.saturating_sub(now))
    }

    /// The same for people, if it may be given none.
    pub fn set_aside(
        &self,
        worker_id: &str,
        instance: &str,
        name: &str,
        now: Duration,
    ) -> Option<SetAside> {
        let record = self.members.get(worker_id)?;
        let left = record.until(instance).checked_sub(now).filter(|left| !left.is_zero())?;
        Some(SetAside {
            worker: name.to_owned(),
            quarantine: record.quarantined(instance, now),
            seconds: left.as_secs_f64().ceil() as u64,
            reason: record.reason.clone(),
        })
    }

    /// Nothing comes through from one process of a worker to another one: for how long it is not tried again.
    pub fn note_hop(&mut self, from: &str, to: &str, now: Duration) -> Duration {
        let seed = self.seed;
        let way = (from.to_owned(), to.to_owned());
        if self.hops.len() >= MOST_HOPS && !self.hops.contains_key(&way) {
            let oldest =
                self.hops.iter().min_by_key(|(_, hop)| hop.until).map(|(way, _)| way.clone());
            oldest.map(|way| self.hops.remove(&way));
        }
        let hop = self.hops.entry(way).or_default();
        hop.breaks = hop.breaks.saturating_add(1);
        let numbers = [seed, name_number(from), name_number(to), u64::from(hop.breaks)];
        let pause = jittered(HOP_PAUSE.pause(hop.breaks), &numbers);
        hop.until = now + pause;
        pause
    }

    /// Whether no way to or from this process of a worker is to be tried: one between it and another process that is
    /// there let nothing through. Which of the two it was that nothing comes from or to is not known, and to find out
    /// with the next one would have everybody wait once more. Where the other process is gone, it was that.
    pub fn is_cut_off(
        &self,
        process: &str,
        is_there: impl Fn(&str) -> bool,
        now: Duration,
    ) -> bool {
        self.hops.iter().any(|((from, to), hop)| {
            let ends = [from.as_str(), to.as_str()];
            hop.until > now && ends.contains(&process) && ends.into_iter().all(&is_there)
        })
    }
}

impl Record {
    /// Until when its process `instance` is given no layers.
    fn until(&self, instance: &str) -> Duration {
        let quarantine = self.quarantine.as_ref().filter(|it| it.instance == instance);
        let pauses = self.lied_until.max(self.kept.until);
        quarantine.map_or(pauses, |it| it.until.max(pauses))
    }

    fn quarantined(&self, instance: &str, now: Duration) -> bool {
        self.quarantine.as_ref().is_some_and(|it| it.instance == instance && it.until > now)
    }
}

/// A pause that is a little shorter or longer, always the same for the same numbers.
fn jittered(pause: Duration, numbers: &[u64]) -> Duration {
    let mixed = numbers.iter().fold(0, |mixed: u64, number| mix(mixed ^ number));
    let part = (mixed >> 11) as f64 / (1u64 << 53) as f64; // In [0, 1).
    pause.mul_f64(1.0 + JITTER * (2.0 * part - 1.0))
}

/// A number for a name (FNV-1a).
fn name_number(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// splitmix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How often a member is given layers within a minute, if it does this as soon as it has some, and is started
    /// again each time if it can be.
    fn given_in_a_minute(offence: Offence, restarts: bool) -> usize {
        let mut conduct = Conduct::new(7);
        let (mut now, mut given) = (Duration::ZERO, 0);
        while now < MINUTE {
            let instance = if restarts { given.to_string() } else { "one".to_owned() };
            if !conduct.spared_for("id", now).is_zero()
                || conduct.is_set_aside("id", &instance, now)
            {
                now += Duration::from_millis(10);
                continue;
            }
            given += 1;
            conduct.note("id", &instance, offence, "", now);
        }
        given
    }

    #[test]
    fn whoever_does_it_again_and_again_is_given_layers_a_few_times_in_a_minute() {
        for (offence, restarts, most) in [
            (Offence::Malformed, false, 3),
            (Offence::NotFinite, false, 3),
            (Offence::Malformed, true, 8),
            (Offence::Kept, false, 8),
            (Offence::Lost, false, 8),
        ] {
            let given = given_in_a_minute(offence, restarts);
            assert!((2..=most).contains(&given), "{offence:?}, restarts {restarts}: {given}");
        }
    }

    #[test]
    fn three_lies_make_a_quarantine_that_a_restart_ends() {
        let mut conduct = Conduct::new(7);
        let mut note = |now| conduct.note("id", "one", Offence::Malformed, "3 rows", now);
        assert!(matches!(note(s(0)), Consequence::SetAside(_)));
        assert!(matches!(note(s(10)), Consequence::SetAside(_)));
        let Consequence::Quarantine(long) = note(s(20)) else { panic!("not the third time") };
        assert!(long > s(1000), "{long:?}");
        assert!(conduct.is_set_aside("id", "one", s(1000)));
        let told = conduct.set_aside("id", "one", "b", s(1000)).expect("told");
        assert!(told.quarantine && told.seconds > 0);
        assert_eq!((&*told.worker, &*told.reason), ("b", "3 rows"));
        assert!(!conduct.is_set_aside("id", "one", s(20) + long));
        assert!(!conduct.is_set_aside("other", "one", s(21)));
        // Started again it begins anew, and yet one more lie is enough.
        assert!(!conduct.is_set_aside("id", "two", s(25)));
        assert_eq!(conduct.set_aside("id", "two", "b", s(25)), None);
        let again = conduct.note("id", "two", Offence::NotFinite, "NaN", s(30));
        let Consequence::Quarantine(longer) = again else { panic!("{again:?}") };
        assert!(longer > long);
        assert!(conduct.is_set_aside("id", "three", s(31)), "no way around the pause");
    }

    #[test]
    fn pauses_grow_and_are_never_quite_the_same() {
        let mut conduct = Conduct::new(7);
        let mut pauses = Vec::new();
        for time in 0..4 {
            match conduct.note("id", "one", Offence::Kept, "", s(time)) {
                Consequence::SetAside(pause) => pauses.push(pause),
                other => panic!("{other:?}"),
            }
        }
        assert!(pauses.is_sorted_by(|before, after| *after > before.mul_f64(1.3)), "{pauses:?}");
        let first = |seed, id: &str| match Conduct::new(seed).note(id, "", Offence::Kept, "", s(0))
        {
            Consequence::SetAside(pause) => pause,
            other => panic!("{other:?}"),
        };
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        for seed in 0..1000 {
            let pause = first(seed, "a").as_secs_f64() / KEPT_PAUSE.first.as_secs_f64();
            assert!((1.0 - JITTER..=1.0 + JITTER).contains(&pause), "{pause}");
        }
    }

    #[test]
    fn a_loss_is_nothing_several_are_and_both_are_forgotten() {
        let mut conduct = Conduct::new(7);
        let mut note = |now| conduct.note("id", "one", Offence::Lost, "gone", now);
        assert_eq!(note(s(0)), Consequence::None);
        assert!(matches!(note(s(5)), Consequence::Avoided(_)));
        assert!(matches!(note(s(6)), Consequence::Avoided(pause) if pause > s(1)));
        assert!(conduct.is_avoided("id", s(6)) && !conduct.is_set_aside("id", "one", s(6)));
        assert!(!conduct.is_avoided("id", s(400)));
        let again = conduct.note("id", "one", Offence::Lost, "gone", s(400));
        assert_eq!(again, Consequence::None, "that was long ago");
    }

    /// However often it keeps a step as soon as it is given layers, which stalls everybody for some seconds.
    #[test]
    fn whoever_keeps_steps_for_ever_is_given_layers_ever_more_rarely() {
        const STALL: Duration = s(4);
        let mut conduct = Conduct::new(7);
        let (mut now, mut stalled, mut given) = (Duration::ZERO, Duration::ZERO, 0);
        while now < DAY {
            now += STALL;
            stalled += STALL;
            given += 1;
            match conduct.note("id", "one", Offence::Kept, "", now) {
                Consequence::SetAside(pause) => now += pause,
                other => panic!("{other:?}"),
            }
        }
        assert!((12..=40).contains(&given) && stalled * 500 < now, "{given} times, {stalled:?}");
    }

    #[test]
    fn good_service_is_remembered_too() {
        let mut conduct = Conduct::new(7);
        let mut kept = |now| match conduct.note("id", "one", Offence::Kept, "", now) {
            Consequence::SetAside(pause) => pause,
            other => panic!("{other:?}"),
        };
        let worst = (0..6).map(|_| kept(s(0))).last().expect("six times");
        assert!(kept(s(0) + worst + LATELY) < worst, "after some minutes it is better");
        assert!(kept(s(36_000)) < s(1), "after hours it is as if nothing had been");
    }

    #[test]
    fn who_is_needed_has_to_wait_only_if_it_is_lost_in_quick_succession() {
        let mut conduct = Conduct::new(7);
        for time in 0..10 {
            let now = s(70 * time);
            conduct.note("id", "one", Offence::Lost, "gone", now);
            assert!(
                conduct.spared_for("id", now + s(10)).is_zero(),
                "it served for more than a minute"
            );
        }
        conduct.note("id", "one", Offence::Lost, "gone", s(631));
        assert!(!conduct.spared_for("id", s(631 + 30)).is_zero());
    }

    #[test]
    fn a_way_that_lets_nothing_through_is_not_tried_for_a_while() {
        let mut conduct = Conduct::new(7);
        let first = conduct.note_hop("a", "b", s(0));
        let cut_off = |there: &[&str], now| -> Vec<String> {
            let is = |it: &&&str| conduct.is_cut_off(it, |other| there.contains(&other), now);
            there.iter().filter(is).map(|it| (*it).to_owned()).collect()
        };
        assert_eq!(cut_off(&["a", "b", "c"], s(10)), ["a", "b"], "it may be either");
        assert_eq!(cut_off(&["a", "b", "c"], first), [""; 0]);
        assert_eq!(cut_off(&["a", "another process of b", "c"], s(10)), [""; 0]);
        assert!(conduct.note_hop("a", "b", s(100)) > first);
        for process in 0..2 * MOST_HOPS {
            conduct.note_hop("a", &process.to_string(), s(200));
        }
        assert_eq!(conduct.hops.len(), MOST_HOPS);
    }
}
