//! The recent past of a service, one sentence for each thing that happened, for people who ask afterwards.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// How many are kept; the oldest go first.
const KEPT: usize = 1024;
/// How many of them pages show.
const SHOWN: usize = 20;
/// How long after one model another one may find out the same (milliseconds).
const SAME_MS: u64 = 10_000;
/// Longest sentence kept (bytes): what others said may be in it.
const LONGEST: usize = 2048;

/// What a thing is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The service itself: when it is ready, and when it is not.
    Service,
    /// Who came or was lost, and what a device did.
    Worker,
    /// Who holds which layers.
    Layers,
    /// Requests that failed.
    Request,
    /// What is not as it should be but stops nothing.
    Warning,
}

impl Kind {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Worker => "worker",
            Self::Layers => "layers",
            Self::Request => "request",
            Self::Warning => "warning",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// 1 for the first since the start, and one more for each.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it is about.
    pub kind: Kind,
    /// What happened.
    pub words: String,
}

/// What happened lately, in order.
#[derive(Debug, Default)]
pub struct Chronicle {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    last: u64,
}

impl Chronicle {
    /// Writes down what happened just now.
    pub fn add(&self, kind: Kind, words: impl Into<String>) {
        let mut words: String = words.into();
        words.truncate(words.floor_char_boundary(LONGEST));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut kept = self.kept();
        kept.last += 1;
        let entry = Entry { number: kept.last, at_ms: since.as_millis() as u64, kind, words };
        kept.entries.push_back(entry);
        if kept.entries.len() > KEPT {
            kept.entries.pop_front();
        }
    }

    /// The same of what each model finds out by itself, unless it is the last that was said of its subject, which is the first
    /// word, and was said a moment ago.
    pub fn add_once(&self, kind: Kind, words: String) {
        let subject = |words: &str| words.split(' ').next().map(str::to_owned);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let lately = (since.as_millis() as u64).saturating_sub(SAME_MS);
        let is_told = {
            let kept = self.kept();
            let last = kept.entries.iter().rev().take_while(|entry| entry.at_ms >= lately);
            let mut of_it =
                last.filter(|it| it.kind == kind && subject(&it.words) == subject(&words));
            of_it.next().is_some_and(|entry| entry.words == words)
        };
        if !is_told {
            self.add(kind, words);
        }
    }

    /// What happened after the entry of this number, 0 for all that is kept.
    pub fn after(&self, number: u64) -> Vec<Entry> {
        let kept = self.kept();
        kept.entries.iter().filter(|entry| entry.number > number).cloned().collect()
    }

    /// The number of the latest entry, 0 before there is one.
    pub fn last(&self) -> u64 {
        self.kept().last
    }

    /// The latest of what is not about requests.
    pub fn of_cluster(&self) -> Vec<Entry> {
        let kept = self.kept();
        let latest = kept.entries.iter().rev().filter(|entry| entry.kind != Kind::Request);
        let mut latest: Vec<Entry> = latest.take(SHOWN).cloned().collect();
        latest.reverse();
        latest
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Each change leaves it whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_models_find_out_is_said_once_and_what_happens_again_is_said_again() {
        let chronicle = Chronicle::default();
        let words = ["kitchen is gone", "attic is gone", "kitchen is gone", "kitchen is there"];
        for said in [&words[..], &["kitchen is gone"]].concat() {
            chronicle.add_once(Kind::Worker, said.to_owned());
        }
        let said: Vec<String> = chronicle.after(0).into_iter().map(|entry| entry.words).collect();
        assert_eq!(said, [words[0], words[1], words[3], words[0]]);
    }

    #[test]
    fn the_latest_are_kept_and_numbers_go_on() {
        let chronicle = Chronicle::default();
        for number in 1..=KEPT + 3 {
            chronicle.add(Kind::Worker, format!("thing {number}"));
        }
        let all = chronicle.after(0);
        assert_eq!((all.len(), all[0].number), (KEPT, 4));
        let last = chronicle.after(KEPT as u64 + 2);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].words, format!("thing {}", KEPT + 3));
        assert_eq!(chronicle.after(u64::MAX), []);
    }

    #[test]
    fn the_latest_of_the_cluster_are_shown_in_order() {
        let chronicle = Chronicle::default();
        for number in 1..=SHOWN + 2 {
            chronicle.add(Kind::Worker, number.to_string());
            chronicle.add(Kind::Request, "failed");
        }
        let shown = chronicle.of_cluster();
        let (first, last) = (&shown[0].words, &shown[SHOWN - 1].words);
        assert_eq!((shown.len(), &**first, &**last), (SHOWN, "3", "22"));
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        let chronicle = Chronicle::default();
        chronicle.add(Kind::Warning, "é".repeat(LONGEST));
        assert_eq!(chronicle.after(0)[0].words.len(), LONGEST);
        chronicle.add(Kind::Warning, format!("a{}", "é".repeat(LONGEST)));
        assert_eq!(chronicle.after(1)[0].words.len(), LONGEST - 1);
    }
}
