//! How often, and after how long, something is asked for again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime};

use tracing::{info, warn};

use crate::error::{Cause, Error};

/// Tries in a row that may bring nothing. With the pauses between them about a minute.
const MAX_TRIES: u32 = 8;
/// The same where nothing has come yet and somebody waits for an answer: whoever has no network learns it soon.
const FEW_TRIES: u32 = 4;
/// The first pause; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest time that a server may have us wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// A pause that people should know of.
const LONG: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody wants to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Why a request brought nothing.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may bring something the next time, not before `after`.
    Passing { cause: Cause, after: Option<Duration> },
    /// It never will.
    Lasting(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

/// Tries of one thing.
#[derive(Debug)]
pub(crate) struct Tries {
    in_vain: u32,
    most: u32,
}

impl Tries {
    /// Of something that may take hours.
    pub(crate) fn many() -> Tries {
        Tries { in_vain: 0, most: MAX_TRIES }
    }

    /// Of something that somebody waits for.
    pub(crate) fn few() -> Tries {
        Tries { in_vain: 0, most: FEW_TRIES }
    }

    /// Something came: whatever goes wrong next is the first time again.
    pub(crate) fn progressed(&mut self) {
        self.in_vain = 0;
    }

    /// Waits before the next try, unless `stop` says so in the meantime.
    ///
    /// # Errors
    /// The trouble, if it lasts or there were too many.
    pub(crate) fn again(
        &mut self,
        url: &str,
        trouble: Trouble,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let (cause, after) = match trouble {
            Trouble::Passing { cause, after } => (cause, after),
            Trouble::Lasting(error) => return Err(error),
        };
        self.in_vain += 1;
        let tries = self.in_vain;
        if tries >= self.most {
            return Err(Error::Unreachable { url: url.to_owned(), tries, cause });
        }
        let pause = pause(tries, after, RandomState::new().hash_one(tries));
        match pause >= LONG {
            true => {
                warn!(url, %cause, tries, pause_seconds = pause.as_secs(), "asking again later")
            }
            false => info!(url, %cause, tries, "asking again"),
        }
        let end = Instant::now() + pause;
        while !stop() && Instant::now() < end {
            std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }
}

/// How long to wait: at least what the server asked for, and not just as long as everybody else.
fn pause(tries: u32, after: Option<Duration>, random: u64) -> Duration {
    let grown = FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    let part = (random % 1024) as u32;
    let jitter = grown / 2 * part / 1024;
    match after {
        Some(after) => after.min(LONGEST_WAIT) + jitter,
        None => grown / 2 + jitter,
    }
}

/// What a `Retry-After` header says: seconds, or a date.
pub(crate) fn retry_after(header: Option<&str>, now: SystemTime) -> Option<Duration> {
    let text = header?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        for random in [0, 511, 1023, u64::MAX] {
            let pauses: Vec<_> = (1..20).map(|tries| pause(tries, None, random)).collect();
            assert!(pauses.is_sorted() && pauses[0] >= FIRST_PAUSE / 2, "{pauses:?}");
            assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
            let asked = Duration::from_secs(7);
            assert!((asked..asked + FIRST_PAUSE).contains(&pause(1, Some(asked), random)));
            assert!(pause(1, Some(Duration::MAX), random) <= LONGEST_WAIT + FIRST_PAUSE);
        }
    }

    #[test]
    fn a_server_says_how_long_or_until_when() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 10);
        let said = |text| retry_after(Some(text), now);
        assert_eq!(said(" 12 "), Some(Duration::from_secs(12)));
        assert_eq!(said("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(said("Sat, 06 Nov 1993 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(said("soon"), None);
        assert_eq!(retry_after(None, now), None);
    }

    #[test]
    fn tries_in_vain_are_counted_from_the_last_success() {
        let mut tries = Tries::many();
        let trouble = || Trouble::Passing { cause: Cause::Status(503), after: None };
        for _ in 0..3 {
            for _ in 1..MAX_TRIES {
                tries.again("u", trouble(), &|| true).unwrap();
            }
            tries.progressed();
        }
        for _ in 1..MAX_TRIES {
            tries.again("u", trouble(), &|| true).unwrap();
        }
        let error = tries.again("u", trouble(), &|| true).unwrap_err().to_string();
        assert_eq!(error, "u cannot be reached: it answers 503 (tried 8 times)");
        let lasting = Error::NoCache.into();
        assert!(matches!(Tries::many().again("u", lasting, &|| true), Err(Error::NoCache)));
    }
}
