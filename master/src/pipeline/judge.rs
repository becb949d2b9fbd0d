//! Where a step is that does not come back, by what the stages say of themselves.
//!
//! The master sees only what comes out at the end. So it asks each stage how far it is, twice: the first stage
//! that has not passed the step on owes it, and what it did between the two times tells whether it is slow or
//! will never do it.
use std::time::Duration;

/// What a stage says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Frames of steps that came.
    pub(super) frames: u64,
    /// Number of the last step that came whole, and how many did.
    pub(super) received: u64,
    pub(super) received_count: u64,
    /// The step that it is at.
    pub(super) at_work: Option<Work>,
    /// Number of the last step that left, and how many did.
    pub(super) sent: u64,
    pub(super) sent_count: u64,
}

/// A step in a stage's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) step: u64,
    /// How long it has been at it.
    pub(super) since: Duration,
    /// Whether it is computed and waits for its link.
    pub(super) leaving: bool,
}

/// What came of asking a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It said so.
    Report(Report),
    /// No answer in time.
    Nothing,
}

/// Who is to blame, by places among the remote stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// A stage, which keeps a step to itself.
    Stage(usize),
    /// A stage that says nothing: whether it has the step is not known.
    Mute(usize),
    /// The way from this stage to the next one.
    Hop(usize),
}

/// Whether a step is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Somebody has it and goes on, or it is too soon to tell.
    Wait,
    /// It will not come: who is to blame, and what was seen.
    Lost(Blame, String),
}

/// How what a stage makes comes to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By a stream of its own.
    Direct,
    /// The master carries it.
    Carried(Carried),
}

/// Steps that a stage handed to the master for the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Number of the last one.
    pub(super) last: u64,
    /// How many.
    pub(super) count: u64,
}

/// Judges by two rounds of questions where `step` is, which has left the master.
///
/// * `ways`: from each stage to the next one.
/// * `longest_work`: how long a step may be waited for whatever stages say.
/// * `waited`: how long it has been, by the master's own clock.
pub(super) fn judge(
    step: u64,
    (before, now): (&[Heard], &[Heard]),
    ways: &[Way],
    longest_work: Duration,
    waited: Duration,
) -> Verdict {
    // What a stage says of itself is worth no more than so much time.
    let wait = |stage: usize| match waited < longest_work {
        true => Verdict::Wait,
        false => {
            lost(Blame::Stage(stage), &format!("a step has been there for {} s", waited.as_secs()))
        }
    };
    for (stage, heard) in now.iter().enumerate() {
        let Some(earlier) = before.get(stage) else { return Verdict::Wait };
        let (was, is) = match (earlier, heard) {
            (Heard::Nothing, Heard::Nothing) => {
                return lost(Blame::Mute(stage), "it does not say how far it is");
            }
            (_, Heard::Nothing) | (Heard::Nothing, _) => return Verdict::Wait,
            (Heard::Report(was), Heard::Report(is)) => (was, is),
        };
        match (was.sent >= step, is.sent >= step) {
            (true, true) => continue,
            (false, true) => return wait(stage), // It left a moment ago.
            _ => {}
        }
        if is.sent != was.sent || is.received != was.received || is.frames != was.frames {
            return wait(stage); // It goes on.
        }
        if is.received < step {
            let seen = format!("step {step} does not arrive, the last one was {}", is.received);
            return Verdict::Lost(arrival(stage, ways, step), seen);
        }
        return match is.at_work {
            Some(work) if !work.leaving && work.since < longest_work => wait(stage),
            Some(work) if !work.leaving => {
                let seconds = work.since.as_secs();
                lost(Blame::Stage(stage), &format!("it has computed one step for {seconds} s"))
            }
            // Its link takes nothing: whose fault that is shows at the other end.
            Some(work) if was.at_work.is_none_or(|it| it.step != work.step || !it.leaving) => {
                wait(stage)
            }
            Some(_) => {
                let blame = match ways.get(stage) {
                    Some(Way::Direct) if stage + 1 < now.len() => Blame::Hop(stage),
                    _ => Blame::Stage(stage), // The master takes whatever it gives.
                };
                lost(blame, &format!("step {step} cannot leave"))
            }
            None if was.at_work.is_some() => wait(stage), // What came of that is on its way.
            None => lost(Blame::Stage(stage), &format!("it took step {step} and is idle")),
        };
    }
    let last = now.len().saturating_sub(1);
    lost(Blame::Stage(last), &format!("step {step} has left it and is not here"))
}

/// Who is to blame for a step that was overtaken by a later one, which passed every stage: the first stage
/// with a hole in what came or left. Of `failed` steps it is known why they left no stage.
pub(super) fn judge_overtaken(heard: &[Heard], ways: &[Way], failed: u64) -> (Blame, String) {
    let hole = |last: u64, count: u64| last.saturating_sub(count) > failed;
    for (stage, heard) in heard.iter().enumerate() {
        let Heard::Report(report) = heard else {
            return (Blame::Mute(stage), "it does not say how far it is".to_owned());
        };
        if hole(report.received, report.received_count) {
            let before = stage.checked_sub(1).and_then(|before| Some((before, *ways.get(before)?)));
            let blame = match before {
                Some((before, Way::Direct)) => Blame::Hop(before),
                Some((before, Way::Carried(Carried { last, count }))) if hole(last, count) => {
                    Blame::Stage(before)
                }
                _ => Blame::Stage(stage), // The master sent it.
            };
            return (blame, "a step did not arrive, later ones did".to_owned());
        }
        if hole(report.sent, report.sent_count) {
            let seen = "a step came and did not leave, later ones did".to_owned();
            return (Blame::Stage(stage), seen);
        }
    }
    let last = heard.len().saturating_sub(1);
    (Blame::Stage(last), "an answer did not come, later ones did".to_owned())
}

/// Who is to blame for `step`, which does not arrive at a stage though the one before says that it has left.
fn arrival(stage: usize, ways: &[Way], step: u64) -> Blame {
    let Some(before) = stage.checked_sub(1) else { return Blame::Stage(stage) };
    match ways.get(before) {
        Some(Way::Carried(carried)) if carried.last < step => Blame::Stage(before), // It never came here.
        Some(Way::Carried(_)) => Blame::Stage(stage),
        Some(Way::Direct) | None => Blame::Hop(before),
    }
}

fn lost(blame: Blame, seen: &str) -> Verdict {
    Verdict::Lost(blame, seen.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);
    const DIRECT: [Way; 2] = [Way::Direct, Way::Direct];

    /// The master carried all steps to this one from the first stage to the second.
    fn carried(last: u64) -> [Way; 2] {
        [Way::Carried(Carried { last, count: last }), Way::Direct]
    }

    /// A stage that has got all steps to `received` and passed on all to `sent`.
    fn at(received: u64, sent: u64) -> Report {
        let frames = received;
        Report { frames, received, received_count: received, at_work: None, sent, sent_count: sent }
    }

    fn working(report: Report, seconds: u64, leaving: bool) -> Report {
        let since = Duration::from_secs(seconds);
        let work = Work { step: report.sent + 1, since, leaving };
        Report { at_work: Some(work), ..report }
    }

    fn say(reports: [Report; 2]) -> [Heard; 2] {
        reports.map(Heard::Report)
    }

    fn blame(before: [Heard; 2], now: [Heard; 2], ways: [Way; 2]) -> Option<Blame> {
        blame_after(Duration::from_secs(3), before, now, ways)
    }

    fn blame_after(
        waited: Duration,
        before: [Heard; 2],
        now: [Heard; 2],
        ways: [Way; 2],
    ) -> Option<Blame> {
        match judge(7, (&before, &now), &ways, LONG, waited) {
            Verdict::Wait => None,
            Verdict::Lost(blame, _) => Some(blame),
        }
    }

    #[test]
    fn a_step_that_does_not_arrive_is_the_ways_fault() {
        let gone = say([at(7, 7), at(6, 6)]);
        assert_eq!(blame(gone, gone, DIRECT), Some(Blame::Hop(0)));
        assert_eq!(blame(gone, gone, carried(7)), Some(Blame::Stage(1)), "the master sent it");
        assert_eq!(blame(gone, gone, carried(6)), Some(Blame::Stage(0)), "it never came here");
        let left = say([at(7, 6), at(6, 6)]);
        assert_eq!(blame(left, gone, DIRECT), None, "it left a moment ago");
        let first = say([at(6, 6), at(6, 6)]);
        assert_eq!(blame(first, first, DIRECT), Some(Blame::Stage(0)));
        let mut moving = at(6, 6);
        moving.frames += 1;
        assert_eq!(blame(gone, say([at(7, 7), moving]), DIRECT), None, "a part of it arrived");
    }

    #[test]
    fn who_computes_is_waited_for_and_who_does_nothing_is_not() {
        let busy = |seconds| say([at(7, 7), working(at(7, 6), seconds, false)]);
        assert_eq!(blame(busy(2), busy(3), DIRECT), None);
        assert_eq!(blame(busy(31), busy(32), DIRECT), Some(Blame::Stage(1)));
        let idle = say([at(7, 7), at(7, 6)]);
        assert_eq!(blame(busy(2), idle, DIRECT), None, "that it failed may be on its way");
        assert_eq!(blame(idle, idle, DIRECT), Some(Blame::Stage(1)));
        let short = working(at(7, 6), 0, false);
        let says = [Heard::Report(at(7, 7)), Heard::Report(short)];
        assert_eq!(
            blame_after(LONG, says, says, DIRECT),
            Some(Blame::Stage(1)),
            "whatever it says"
        );
        let earlier = say([at(7, 5), at(5, 5)]);
        let later = say([at(7, 6), at(6, 6)]);
        assert_eq!(blame(earlier, later, DIRECT), None, "one step after the other");
    }

    #[test]
    fn a_link_that_takes_nothing_is_found_at_its_other_end() {
        let stuck = say([working(at(7, 6), 3, true), at(6, 6)]);
        assert_eq!(blame(stuck, stuck, DIRECT), Some(Blame::Hop(0)));
        assert_eq!(blame(stuck, stuck, carried(6)), Some(Blame::Stage(0)), "the master takes all");
        let last = say([at(7, 7), working(at(7, 6), 3, true)]);
        assert_eq!(blame(last, last, DIRECT), Some(Blame::Stage(1)));
        let began = say([at(7, 7), working(at(7, 6), 3, false)]);
        assert_eq!(blame(began, began, DIRECT), None);
    }

    #[test]
    fn an_answer_that_left_and_is_not_here_is_the_last_stages() {
        let done = say([at(7, 7), at(7, 7)]);
        assert_eq!(blame(say([at(7, 7), at(7, 6)]), done, DIRECT), None, "it left a moment ago");
        assert_eq!(blame(done, done, DIRECT), Some(Blame::Stage(1)));
    }

    #[test]
    fn who_says_nothing_twice_is_lost_and_once_is_not() {
        let silent = [Heard::Report(at(7, 7)), Heard::Nothing];
        let there = say([at(7, 7), at(6, 6)]);
        assert_eq!(blame(there, silent, DIRECT), None);
        assert_eq!(blame(silent, silent, DIRECT), Some(Blame::Mute(1)));
        assert_eq!(judge(7, (&[], &there), &DIRECT, LONG, LONG), Verdict::Wait);
    }

    #[test]
    fn an_overtaken_step_left_a_hole_where_it_was_lost() {
        let hole = |mut report: Report, came: bool| {
            report.sent_count -= 1;
            report.received_count -= u64::from(!came);
            report
        };
        let judge = |reports: [Report; 2], ways: [Way; 2], failed| {
            judge_overtaken(&say(reports), &ways, failed).0
        };
        let (whole, missed) = (at(9, 9), hole(at(9, 9), false));
        assert_eq!(judge([whole, missed], DIRECT, 0), Blame::Hop(0));
        assert_eq!(judge([whole, missed], carried(9), 0), Blame::Stage(1));
        let [_, direct] = DIRECT;
        let never = [Way::Carried(Carried { last: 9, count: 8 }), direct];
        assert_eq!(judge([whole, missed], never, 0), Blame::Stage(0), "it never came here");
        assert_eq!(judge([missed, missed], DIRECT, 0), Blame::Stage(0));
        assert_eq!(judge([hole(whole, true), missed], DIRECT, 0), Blame::Stage(0));
        assert_eq!(judge([whole, whole], DIRECT, 0), Blame::Stage(1));
        assert_eq!(judge([whole, missed], DIRECT, 1), Blame::Stage(1), "one failed with a word");
    }
}
