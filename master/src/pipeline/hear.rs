//! What stages say, checked: an answer that cannot be is the loss of who gave it.
use std::error::Error as _;

use cake_proto::failure::first_non_finite;
use cake_proto::said::sentence;
use cake_proto::{Assembler, Failure, FailureKind, Incoming, Step, wire};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};
use tracing::debug;

use super::local::Output;
use super::{Answer, Error, Shared};
use crate::sizing::LOCAL;

/// A stage that could not do so many steps in a row, and no other could, will not do the next one either.
const FAILURES: u32 = 3;
/// What the transport says, as of a message that cannot be one, of a connection that ended within a message.
const CUT_SHORT: &str = "Unexpected EOF";

impl Shared {
    /// Reads what the remote stage at `index` says until its stream ends.
    pub(super) async fn listen(
        &self,
        index: usize,
        mut stream: Streaming<wire::StepFrame>,
        max_rows: usize,
    ) {
        let worker = || self.remotes[index].name.clone();
        let mut assembler = Assembler::new(self.remotes[index].row_width, max_rows);
        let error = loop {
            let lost = |reason: &str| Error::Lost { worker: worker(), reason: reason.to_owned() };
            let frame = match stream.message().await {
                Ok(Some(frame)) => frame,
                Ok(None) => break lost("it closed the stream"),
                Err(status) if is_no_message(&status) => {
                    break self.malformed(index, sentence(status.message()));
                }
                Err(status) => break lost(&sentence(status.message())),
            };
            match assembler.push(frame) {
                Ok(None) => {}
                Ok(Some(Incoming::Step(step))) => self.answer(index, step),
                Ok(Some(Incoming::Relay(step))) => match self.check_relay(index, &step) {
                    Ok(true) => {
                        self.carried(index, step.step);
                        self.forward(index + 1, step).await;
                    }
                    Ok(false) => {}
                    Err(error) => break error,
                },
                Ok(Some(Incoming::Failure { step, message, kind, layers, .. })) => {
                    self.hear_failure(index, step, Failure { kind, layers, message });
                }
                Err(error) => {
                    break Error::Malformed { worker: worker(), reason: error.to_string() };
                }
            }
        };
        self.break_down(error);
    }

    /// The remote stage at `index` could not do a step (0: any of those in flight).
    fn hear_failure(&self, index: usize, step: u64, failure: Failure) {
        let Failure { kind, message: reason, .. } = failure;
        let name = |index: usize| self.remotes.get(index).map(|remote| remote.name.clone());
        let Some(worker) = name(index) else { return };
        let error = match kind {
            // Its numbers or its weights are not what they were: it computes nothing more until it is loaded anew.
            FailureKind::NonFinite => Error::NotFinite { worker, reason },
            FailureKind::Damaged => Error::Lost { worker, reason },
            // Who sent it looked before, and so did the master, if that was it: the way, or one of the two, is not
            // to be believed. Over the master it will show which.
            FailureKind::NonFiniteInput => match index.checked_sub(1) {
                Some(before) if !self.relayed[before] => {
                    let from = self.remotes[before].name.clone();
                    Error::Hop { from, to: worker, reason }
                }
                _ => Error::NotFinite { worker, reason },
            },
            FailureKind::Other if step > 0 => {
                self.fail(step, Error::Stage { worker: worker.clone(), message: reason.clone() });
                match self.fails_again(index) {
                    FAILURES.. => Error::Lost {
                        worker,
                        reason: format!("it could not do {FAILURES} steps in a row: {reason}"),
                    },
                    _ => return,
                }
            }
            // Of every step at once: its stream to the next stage broke.
            FailureKind::Other => match name(index + 1) {
                Some(to) if !self.relayed[index] => Error::Hop { from: worker, to, reason },
                _ => self.malformed(index, "it has no stream to a next stage to lose".to_owned()),
            },
        };
        self.break_down(error);
    }

    /// The remote stage at `index` could not do one more step; how many in a row by now.
    fn fails_again(&self, index: usize) -> u32 {
        let mut pending = self.lock();
        let before = pending.failing.filter(|(stage, _)| *stage == index);
        let times = before.map_or(1, |(_, times)| times.saturating_add(1));
        pending.failing = Some((index, times));
        times
    }

    /// The master carries a step from the remote stage at `index` to the next one.
    fn carried(&self, index: usize, step: u64) {
        let mut pending = self.lock();
        let carried = pending.carried.entry(index).or_default();
        (carried.last, carried.count) = (carried.last.max(step), carried.count + 1);
    }

    /// What the local stage computed goes on to the first remote one, or is the answer.
    pub(super) async fn after_local(&self, result: Output) {
        let worker = LOCAL.to_owned();
        match result {
            Err((step, Failure { kind: FailureKind::Other, message, .. })) => {
                self.fail(step, Error::Stage { worker, message });
            }
            Err((_, Failure { kind: FailureKind::Damaged, message: reason, .. })) => {
                self.break_down(Error::Lost { worker, reason });
            }
            Err((_, Failure { message: reason, .. })) => {
                self.break_down(Error::NotFinite { worker, reason });
            }
            Ok(step) if self.remotes.is_empty() => self.complete(step.into_answer()),
            Ok(step) => self.forward(0, step).await,
        }
    }

    /// Takes what the remote stage at `index` answers.
    pub(super) fn answer(&self, index: usize, step: Step) {
        match self.check_answer(index, &step) {
            Ok(true) => self.complete(step),
            Ok(false) => {}
            Err(error) => self.break_down(error),
        }
    }

    /// Whether an answer is one that is waited for.
    ///
    /// # Errors
    /// If it cannot be one.
    fn check_answer(&self, index: usize, step: &Step) -> Result<bool, Error> {
        let Some((wanted, _)) = self.check_step(index, step)? else { return Ok(false) };
        if index + 1 < self.remotes.len() {
            return Err(self.malformed(index, "an answer, expected of the last stage alone".into()));
        }
        if step.rows != wanted {
            let found = format!("step {} with {} rows, expected {wanted}", step.step, step.rows);
            return Err(self.malformed(index, found));
        }
        self.check_numbers(index, step)
    }

    /// Whether a step is one to carry to the next stage.
    ///
    /// # Errors
    /// If it cannot be one.
    fn check_relay(&self, index: usize, step: &Step) -> Result<bool, Error> {
        let Some((_, rows)) = self.check_step(index, step)? else { return Ok(false) };
        if index + 1 >= self.remotes.len() || !self.relayed.get(index).copied().unwrap_or(false) {
            let found = "a step to be carried on, expected where it cannot do that itself";
            return Err(self.malformed(index, found.to_owned()));
        }
        if step.rows != rows {
            let found = format!("step {} with {} rows, expected {rows}", step.step, step.rows);
            return Err(self.malformed(index, found));
        }
        if let Some(reason) = self.why_no_copy(index, step) {
            return Err(self.malformed(index, reason));
        }
        self.check_numbers(index, step)
    }

    /// Why a step to carry is none that left after those that were carried before: whoever gets it would be blamed for
    /// what it is not. One that is left out is found where answers overtake it.
    fn why_no_copy(&self, index: usize, step: &Step) -> Option<String> {
        let (number, pending) = (step.step, self.lock());
        let last = pending.carried.get(&index).map_or(0, |carried| carried.last);
        if number <= last {
            return Some(format!("step {number} to be carried on, after step {last}"));
        }
        let asked = pending.steps.get(&number)?.asked.as_ref()?;
        let is_same = asked.0 == step.items && asked.1 == step.wanted;
        (!is_same).then(|| {
            format!("step {number} of other sequences, or with other rows wanted, than left")
        })
    }

    /// How many rows are wanted back of a step and how many left; none once nobody waits for anything.
    fn check_step(&self, index: usize, step: &Step) -> Result<Option<(usize, usize)>, Error> {
        let pending = self.lock();
        if pending.broken.is_some() {
            return Ok(None);
        }
        let waiting = pending.steps.get(&step.step).map(|it| (it.rows, it.step_rows));
        drop(pending);
        if step.generation != self.generation {
            let (found, expected) = (step.generation, self.generation);
            let found = format!("step {} of plan {found}, expected {expected}", step.step);
            return Err(self.malformed(index, found));
        }
        match waiting {
            Some(rows) => Ok(Some(rows)),
            None => {
                let found = format!("step {}, which nobody waits for", step.step);
                Err(self.malformed(index, found))
            }
        }
    }

    fn check_numbers(&self, index: usize, step: &Step) -> Result<bool, Error> {
        match not_finite(step) {
            None => Ok(true),
            Some(reason) => {
                Err(Error::NotFinite { worker: self.remotes[index].name.clone(), reason })
            }
        }
    }

    fn malformed(&self, index: usize, reason: String) -> Error {
        Error::Malformed { worker: self.remotes[index].name.clone(), reason }
    }

    /// Gives a checked answer to who waits for it, unless an earlier step should have come before it: what was
    /// computed after a step that got lost may stand on nothing.
    fn complete(&self, step: Step) {
        let mut pending = self.lock();
        if pending.steps.first_key_value().is_some_and(|(first, _)| *first < step.step) {
            pending.overtaken = true;
        }
        if pending.overtaken {
            self.doubt.send_replace(());
            return;
        }
        let Some(waiting) = pending.steps.remove(&step.step) else { return };
        let now = Instant::now();
        let since = waiting.since.max(pending.answered.unwrap_or(waiting.since));
        pending.pace.seen(waiting.step_rows, now - since);
        pending.answered = Some(now);
        pending.failing = None;
        pending.stage_us.clone_from(&step.stage_us);
        pending.paces.back(step.step, &step.stage_us);
        drop(pending);
        let Step { rows, hidden, stage_us, idle_us, .. } = step;
        // A dropped ticket means that nobody waits any more.
        waiting.answer.send(Ok(Answer { hidden, rows, stage_us, idle_us })).ok();
    }

    /// Ends a step of which it is known why it has no answer.
    fn fail(&self, step: u64, error: Error) {
        let mut pending = self.lock();
        let Some(waiting) = pending.steps.remove(&step) else {
            return debug!(step, "the failure of a step that is not pending");
        };
        pending.failed += 1;
        pending.answered = Some(Instant::now());
        drop(pending);
        waiting.answer.send(Err(error)).ok();
    }
}

/// Whether a stream ended because what came cannot be a message: what is wrong with a connection has a cause.
fn is_no_message(status: &Status) -> bool {
    let of_decoding = matches!(status.code(), Code::Internal | Code::OutOfRange);
    of_decoding && status.source().is_none() && !status.message().starts_with(CUT_SHORT)
}

/// What of a step is no number.
fn not_finite(step: &Step) -> Option<String> {
    let (at, value) = first_non_finite(&step.hidden)?;
    let width = step.hidden.len().checked_div(step.rows).unwrap_or(0).max(1);
    let (row, column) = (at / width, at % width);
    Some(format!("step {} has {value} in row {row} at {column}", step.step))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, leave, shared};
    use super::*;

    /// Who says it, what is wrong with it, and what is said of that.
    type Lie = (usize, fn(&mut Step), &'static str);

    /// What becomes of the pipeline when the remote stage at `index` answers this to step 1.
    fn broken_by(index: usize, spoil: impl FnOnce(&mut Step)) -> Option<Error> {
        let (shared, _frames) = shared();
        let _ticket = leave(&shared, 1);
        let mut said = answer(1);
        spoil(&mut said);
        shared.answer(index, said);
        shared.broken.borrow().clone()
    }

    #[test]
    fn an_answer_that_cannot_be_is_the_loss_of_who_gave_it() {
        assert_eq!(broken_by(1, |_| {}), None);
        let lies: [Lie; 4] = [
            (1, |step| step.generation = 2, "step 1 of plan 2, expected 1"),
            (1, |step| (step.rows, step.hidden) = (2, vec![0.5; 8]), "2 rows, expected 1"),
            (1, |step| step.step = 2, "step 2, which nobody waits for"),
            (0, |_| {}, "expected of the last stage alone"),
        ];
        for (index, spoil, says) in lies {
            let error = broken_by(index, spoil);
            let Some(Error::Malformed { worker, reason }) = error else { panic!("{error:?}") };
            assert_eq!(worker, ["a", "b"][index]);
            assert!(reason.contains(says), "{reason}");
        }
    }

    #[test]
    fn what_is_no_number_is_the_loss_of_who_made_it() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = broken_by(1, |step| step.hidden[2] = bad);
            let Some(Error::NotFinite { worker, reason }) = error else { panic!("{error:?}") };
            assert_eq!(worker, "b");
            assert!(reason.contains("in row 0 at 2"), "{reason}");
        }
    }

    /// What becomes of step 1 when the remote stage at `index`, or the master's own, says this of it.
    async fn failed_by(index: Option<usize>, kind: FailureKind, relayed: bool) -> Error {
        let (mut shared, _frames) = shared();
        std::sync::Arc::get_mut(&mut shared).expect("ours alone").relayed[0] = relayed;
        let ticket = leave(&shared, 1);
        let failure = Failure { kind, layers: 0..1, message: "NaN".to_owned() };
        match index {
            Some(index) => shared.hear_failure(index, 1, failure),
            None => shared.after_local(Err((1, failure))).await,
        }
        ticket.await.expect("told").expect_err("failed")
    }

    #[tokio::test]
    async fn a_stage_that_says_what_is_wrong_is_taken_at_its_word_as_far_as_that_goes() {
        use FailureKind::{Damaged, NonFinite, NonFiniteInput, Other};
        let reason = || "NaN".to_owned();
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let made = |worker| Error::NotFinite { worker, reason: reason() };
        let hop = Error::Hop { from: a.clone(), to: b.clone(), reason: reason() };
        let lost = Error::Lost { worker: b.clone(), reason: reason() };
        for (index, kind, relayed, error) in [
            (Some(1), NonFinite, false, made(b.clone())),
            (Some(1), Damaged, false, lost),
            (Some(0), NonFiniteInput, false, made(a)),
            (Some(1), NonFiniteInput, false, hop),
            (Some(1), NonFiniteInput, true, made(b.clone())),
            (Some(1), Other, false, Error::Stage { worker: b, message: reason() }),
            (None, NonFinite, false, made(LOCAL.to_owned())),
            (None, NonFiniteInput, false, made(LOCAL.to_owned())),
        ] {
            assert_eq!(failed_by(index, kind, relayed).await, error);
        }
    }

    #[test]
    fn a_stage_that_has_no_stream_of_its_own_cannot_lose_it() {
        let (mut shared, _frames) = shared();
        std::sync::Arc::get_mut(&mut shared).expect("ours alone").relayed[0] = true;
        for index in [0, 1] {
            shared.lock().broken = None;
            shared.hear_failure(index, 0, Failure::other("it broke"));
            let error = shared.broken.borrow().clone();
            assert!(matches!(error, Some(Error::Malformed { .. })), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_stage_that_can_do_nothing_any_more_is_lost_and_one_that_can_is_not() {
        let (shared, _frames) = shared();
        let fails = |step| {
            let ticket = leave(&shared, step);
            shared.hear_failure(1, step, Failure::other("no room"));
            ticket
        };
        for step in [1, 2, 4, 5] {
            let error = fails(step).await.expect("told").expect_err("failed");
            assert!(matches!(error, Error::Stage { .. }), "{error}");
            if step == 2 {
                let _ticket = leave(&shared, 3);
                shared.answer(1, answer(3));
            }
        }
        assert_eq!(*shared.broken.borrow(), None);
        let (last, other) = (fails(6), leave(&shared, 7));
        assert!(matches!(last.await, Ok(Err(Error::Stage { .. }))), "its own step has failed");
        assert!(shared.broken.borrow().as_ref().is_some_and(Error::is_loss));
        drop(other);
    }

    #[test]
    fn what_is_no_message_is_told_from_a_connection_that_ends() {
        assert!(is_no_message(&Status::internal("failed to decode Protobuf message: invalid tag")));
        assert!(is_no_message(&Status::out_of_range("decoded message length too large")));
        assert!(!is_no_message(&Status::internal("Unexpected EOF decoding stream.")));
        assert!(!is_no_message(&Status::unavailable("gone")));
        let broken = std::io::Error::other("h2 protocol error");
        assert!(!is_no_message(&Status::from_error(Box::new(broken))));
    }

    #[tokio::test]
    async fn a_step_to_be_carried_on_has_to_be_one() {
        let (mut shared, [_first, mut second]) = shared();
        let step = super::super::tests::step;
        std::sync::Arc::get_mut(&mut shared).expect("ours alone").relayed = vec![true, false];
        let _ticket = leave(&shared, 1);
        assert_eq!(shared.check_relay(0, &step(1)), Ok(true));
        let item = cake_proto::StepItem {
            sequence: 1,
            position: 0,
            rows: 1,
            prompt: false,
            blocks: vec![0],
            known: 0,
            state: None,
            trace: None,
        };
        for wrong in [
            shared.check_relay(1, &step(1)),
            shared.check_relay(0, &step(2)),
            shared.check_relay(0, &Step { rows: 2, hidden: vec![0.5; 8], ..step(1) }),
            shared.check_relay(0, &Step { wanted: Vec::new(), ..step(1) }),
            shared.check_relay(0, &Step { items: vec![item], ..step(1) }),
        ] {
            assert!(matches!(wrong, Err(Error::Malformed { .. })), "{wrong:?}");
        }
        let wrong = shared.check_relay(0, &Step { hidden: vec![f32::NAN; 4], ..step(1) });
        assert!(matches!(wrong, Err(Error::NotFinite { .. })), "{wrong:?}");
        assert!(second.try_recv().is_err());
        // One that came twice, or after a later one, would be taken for the next stage's fault.
        let _later = leave(&shared, 2);
        shared.carried(0, 2);
        for number in [1, 2] {
            let wrong = shared.check_relay(0, &step(number));
            assert!(matches!(wrong, Err(Error::Malformed { .. })), "{wrong:?}");
        }
    }
}
