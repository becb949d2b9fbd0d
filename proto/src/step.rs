//! One step of the pipeline as a checked value, and its way into frames and back.
use std::ops::Range;

use bytes::Bytes;

use crate::error::ProtocolError;
use crate::failure::FailureKind;
use crate::said::sentence;
use crate::trace::TraceContext;
use crate::wire_format::{Decoder, WireFormat};
use crate::{limits, wire};

/// The tokens of several sequences on their way through the stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Number of the step, chosen by the master; never reused within a generation.
    pub step: u64,
    /// Generation of the plan it belongs to.
    pub generation: u64,
    /// Sequences in row order. Empty in an answer.
    pub items: Vec<StepItem>,
    /// Rows of `hidden`.
    pub rows: usize,
    /// Rows wanted back from the last stage, ascending.
    pub wanted: Vec<u32>,
    /// Microseconds each stage so far spent computing.
    pub stage_us: Vec<u32>,
    /// Microseconds each stage so far had nothing to compute before it.
    pub idle_us: Vec<u32>,
    /// `[rows, width]`, row-major: hidden states, and what is given to layers beside them.
    pub hidden: Vec<f32>,
}

/// One sequence's part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepItem {
    /// The sequence.
    pub sequence: u64,
    /// Tokens that its KV cache holds before this item.
    pub position: usize,
    /// Rows of this item.
    pub rows: usize,
    /// Whether they are rows of a prompt, not generated ones.
    pub prompt: bool,
    /// KV blocks that hold positions `[0, position + rows)`.
    pub blocks: Vec<u32>,
    /// Positions whose keys and values are there already and stay as they are; some of its own rows' perhaps.
    pub known: usize,
    /// Where the state of recurrent layers is, if the model has such.
    pub state: Option<StateSlots>,
    /// The trace that stages go on with, if it is traced.
    pub trace: Option<TraceContext>,
}

/// The slots of the state of recurrent layers that one item reads and writes, of those that the master numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// Holds the state before the item's rows; `None` where these are the sequence's first.
    pub from: Option<u32>,
    /// Gets the state after them; may be the same.
    pub to: u32,
}

/// What a stream of frames says, one step at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A step, or an answer to one.
    Step(Step),
    /// A step that its stage asks the master to carry to the next one.
    Relay(Step),
    /// A stage could not do a step (`step` 0: every step in flight).
    Failure {
        /// The step.
        step: u64,
        /// Name of the worker that says so.
        worker: String,
        /// One sentence.
        message: String,
        /// Whose fault it is, and so what can be done about it.
        kind: FailureKind,
        /// The layers `[start, end)` of the stage; empty where no stage was there to fail.
        layers: Range<u32>,
    },
}

impl Step {
    /// Keeps of the hidden states what was wanted back: the answer to a step.
    pub fn into_answer(mut self) -> Self {
        let width = self.hidden.len().checked_div(self.rows).unwrap_or(0);
        let row = |row: &u32| *row as usize * width..(*row as usize + 1) * width;
        // Every wanted row is one of the step's: the assembler, or the master itself, saw to it.
        let wanted = self.wanted.iter().filter_map(|wanted| self.hidden.get(row(wanted)));
        self.hidden = wanted.flatten().copied().collect();
        self.rows = self.wanted.len();
        self.wanted.clear();
        self.items.clear();
        self
    }

    /// Cuts the step into frames of at most [`limits::FRAME_BYTES`] of hidden states in `format`, in order.
    pub fn into_frames(self, relay: bool, format: WireFormat) -> Vec<wire::StepFrame> {
        let width = self.hidden.len().checked_div(self.rows).unwrap_or(0);
        let mut hidden = Bytes::from(format.encode(&self.hidden, width));
        let head = wire::StepHead {
            items: self
                .items
                .into_iter()
                .map(|item| wire::StepItem {
                    sequence: item.sequence,
                    position: item.position as u32,
                    rows: item.rows as u32,
                    prompt: item.prompt,
                    blocks: item.blocks,
                    known: item.known as u32,
                    state: item.state.map(|StateSlots { from, to }| wire::StateSlots { from, to }),
                    trace: item.trace.map(|trace| trace.to_vec().into()).unwrap_or_default(),
                })
                .collect(),
            rows: self.rows as u32,
            wanted: self.wanted,
            stage_us: self.stage_us,
            idle_us: self.idle_us,
            format: wire::WireFormat::from(format).into(),
        };
        let mut head = Some(head);
        let mut frames = Vec::with_capacity(hidden.len() / limits::FRAME_BYTES + 1);
        loop {
            let piece = hidden.split_to(hidden.len().min(limits::FRAME_BYTES));
            let last = hidden.is_empty();
            frames.push(wire::StepFrame {
                step: self.step,
                generation: self.generation,
                head: head.take(),
                hidden: piece,
                last,
                failure: None,
                relay,
                announcement: false,
            });
            if last {
                return frames;
            }
        }
    }
}

/// The frame that says a step will come soon.
pub fn announcement_frame() -> wire::StepFrame {
    wire::StepFrame { announcement: true, ..Default::default() }
}

/// Puts the frames of one stream together again. Holds at most one step, of at most `max_rows` rows.
#[derive(Debug)]
pub struct Assembler {
    width: usize,
    max_rows: usize,
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    step: Step,
    relay: bool,
    hidden_bytes: usize,
    received_bytes: usize,
    decoder: Decoder,
}

impl Assembler {
    /// For rows of `width` numbers and steps of at most `max_rows` rows.
    pub fn new(width: usize, max_rows: usize) -> Self {
        Self { width, max_rows: max_rows.min(limits::ROWS), partial: None }
    }

    /// Takes the next frame; gives the step that it completes, if it does.
    ///
    /// # Errors
    /// [`ProtocolError`]; the stream must then be closed.
    pub fn push(&mut self, frame: wire::StepFrame) -> Result<Option<Incoming>, ProtocolError> {
        if frame.announcement {
            // That it came is all it is for.
            return if frame == announcement_frame() {
                Ok(None)
            } else {
                Err(ProtocolError::Announcement)
            };
        }
        if let Some(failure) = frame.failure {
            return Ok(Some(Incoming::Failure {
                step: frame.step,
                kind: failure.kind().into(), // One that is not known is of no kind that could be acted on.
                layers: failure.layer_start..failure.layer_end,
                worker: failure.worker,
                message: sentence(&failure.message),
            }));
        }
        let mut partial = match (self.partial.take(), frame.head) {
            (Some(partial), None) if partial.step.step == frame.step => partial,
            (Some(partial), _) => {
                return Err(ProtocolError::Interleaved {
                    expected: partial.step.step,
                    found: frame.step,
                });
            }
            (None, Some(head)) => self.begin(frame.step, frame.generation, head, frame.relay)?,
            (None, None) => return Err(ProtocolError::NoHead { step: frame.step }),
        };
        let found = partial.received_bytes + frame.hidden.len();
        if found > partial.hidden_bytes || (frame.last && found != partial.hidden_bytes) {
            return Err(ProtocolError::HiddenBytes {
                step: frame.step,
                expected: partial.hidden_bytes,
                found,
            });
        }
        partial.received_bytes = found;
        partial.decoder.push(&frame.hidden, &mut partial.step.hidden);
        if !frame.last {
            self.partial = Some(partial);
            return Ok(None);
        }
        let Partial { step, relay, .. } = partial;
        Ok(Some(if relay { Incoming::Relay(step) } else { Incoming::Step(step) }))
    }

    /// Checks a head against the bounds.
    fn begin(
        &self,
        step: u64,
        generation: u64,
        head: wire::StepHead,
        relay: bool,
    ) -> Result<Partial, ProtocolError> {
        let check = |what, found: usize, limit: usize| {
            if found > limit {
                return Err(ProtocolError::TooMany { step, what, found, limit });
            }
            Ok(())
        };
        let format = WireFormat::try_from(head.format)
            .map_err(|error| ProtocolError::Format { step, found: error.found })?;
        let rows = head.rows as usize;
        check("rows", rows, self.max_rows)?;
        check("sequences", head.items.len(), limits::ITEMS)?;
        check("wanted rows", head.wanted.len(), rows)?;
        check("stages", head.stage_us.len(), limits::STAGES)?;
        check("stages", head.idle_us.len(), limits::STAGES)?;
        if let Some(&row) = head.wanted.iter().find(|&&row| row as usize >= rows) {
            return Err(ProtocolError::Wanted { step, row, rows });
        }
        let mut items = Vec::with_capacity(head.items.len());
        let mut item_rows = 0usize;
        for item in head.items {
            check("KV blocks", item.blocks.len(), limits::BLOCKS)?;
            check("rows of a sequence", item.rows as usize, rows)?;
            item_rows += item.rows as usize;
            items.push(StepItem {
                sequence: item.sequence,
                position: item.position as usize,
                rows: item.rows as usize,
                prompt: item.prompt,
                blocks: item.blocks,
                known: item.known as usize,
                state: item.state.map(|wire::StateSlots { from, to }| StateSlots { from, to }),
                trace: match item.trace.as_ref() {
                    [] => None,
                    trace => Some(
                        trace
                            .try_into()
                            .map_err(|_| ProtocolError::Trace { step, found: trace.len() })?,
                    ),
                },
            });
        }
        if !items.is_empty() && item_rows != rows {
            return Err(ProtocolError::Rows { step, rows, item_rows });
        }
        let hidden = Vec::with_capacity(rows * self.width);
        let (wanted, stage_us, idle_us) = (head.wanted, head.stage_us, head.idle_us);
        let step = Step { step, generation, items, rows, wanted, stage_us, idle_us, hidden };
        let hidden_bytes = rows * format.row_bytes(self.width);
        let decoder = Decoder::new(format, self.width);
        Ok(Partial { step, relay, hidden_bytes, received_bytes: 0, decoder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, failure_frame};

    const HIDDEN: usize = 700; // Not a divisor of a frame, so frames end inside a row.

    fn step(rows: usize) -> Step {
        Step {
            step: 3,
            generation: 9,
            items: vec![StepItem {
                sequence: 5,
                position: 2,
                rows,
                prompt: true,
                blocks: vec![0, 4],
                known: 1,
                state: Some(StateSlots { from: Some(3), to: 1 }),
                trace: Some([7; 25]),
            }],
            rows,
            wanted: vec![0],
            stage_us: vec![17],
            idle_us: vec![3],
            hidden: (0..rows * HIDDEN).map(|index| index as f32 * 0.5).collect(),
        }
    }

    fn assemble(frames: Vec<wire::StepFrame>) -> Result<Option<Incoming>, ProtocolError> {
        let mut assembler = Assembler::new(HIDDEN, 2048);
        let mut done = None;
        for frame in frames {
            done = assembler.push(frame)?;
        }
        Ok(done)
    }

    #[test]
    fn a_step_of_many_frames_comes_back_whole() {
        for rows in [1, 374, 375, 1500] {
            let frames = step(rows).into_frames(false, WireFormat::F32);
            assert_eq!(frames.len(), (rows * HIDDEN * 4).div_ceil(limits::FRAME_BYTES));
            assert_eq!(assemble(frames), Ok(Some(Incoming::Step(step(rows)))));
        }
        assert_eq!(
            assemble(step(2).into_frames(true, WireFormat::F32)),
            Ok(Some(Incoming::Relay(step(2))))
        );
    }

    #[test]
    fn an_announcement_is_no_part_of_a_step() {
        let frames = step(375).into_frames(false, WireFormat::F32);
        let told = frames.into_iter().flat_map(|frame| [announcement_frame(), frame]).collect();
        assert_eq!(assemble(told), Ok(Some(Incoming::Step(step(375)))));
        assert_eq!(assemble(vec![announcement_frame()]), Ok(None));
        let more = wire::StepFrame { step: 7, ..announcement_frame() };
        assert_eq!(assemble(vec![more]), Err(ProtocolError::Announcement));
    }

    #[test]
    fn the_head_tells_the_format_of_the_hidden_states() {
        for (format, row_bytes) in
            [(WireFormat::F32, 2800), (WireFormat::Bf16, 1400), (WireFormat::Q8, 744)]
        {
            let frames = step(1500).into_frames(false, format);
            let bytes: usize = frames.iter().map(|frame| frame.hidden.len()).sum();
            assert_eq!(bytes, 1500 * row_bytes);
            let Ok(Some(Incoming::Step(found))) = assemble(frames) else {
                panic!("{format}: no step");
            };
            let step = step(1500);
            // Half of the last bit kept: of 8 in bf16, of the largest of a group's 127 steps in q8.
            let bound = |sent: f32| match format {
                WireFormat::F32 => 0.0,
                WireFormat::Bf16 => sent / 256.0,
                WireFormat::Q8 => (sent + 32.0) / 253.0, // Values of a group differ by less than 32.
            };
            let mut pairs = found.hidden.iter().zip(&step.hidden);
            assert!(pairs.all(|(found, sent)| (found - sent).abs() <= bound(*sent)), "{format}");
            assert_eq!(Step { hidden: Vec::new(), ..found }, Step { hidden: Vec::new(), ..step });
        }
    }

    #[test]
    fn frames_cut_inside_a_value_come_back_whole() {
        let mut frames = step(1).into_frames(false, WireFormat::F32);
        let mut second = frames[0].clone();
        second.hidden = frames[0].hidden.split_off(7);
        second.head = None;
        frames[0].last = false;
        assert_eq!(assemble(vec![frames.remove(0), second]), Ok(Some(Incoming::Step(step(1)))));
    }

    #[test]
    fn rejects_what_breaks_the_protocol() {
        let frame = |change: fn(&mut wire::StepFrame)| {
            let mut frame = step(2).into_frames(false, WireFormat::F32).remove(0);
            change(&mut frame);
            assemble(vec![frame]).expect_err("refused").to_string()
        };
        assert_eq!(frame(|f| f.head = None), "step 3 begins without a head");
        let rows = frame(|f| f.head.as_mut().expect("head").rows = 4000);
        assert_eq!(rows, "step 3 announces rows: 4000, at most 2048");
        let items = frame(|f| f.head.as_mut().expect("head").items[0].rows = 1);
        assert_eq!(items, "step 3 has 2 rows but its items have 1");
        let format = frame(|f| f.head.as_mut().expect("head").format = 3);
        assert_eq!(format, "step 3 carries hidden states in the unknown format 3");
        let trace = frame(|f| f.head.as_mut().expect("head").items[0].trace = vec![1; 24].into());
        assert_eq!(trace, "step 3 carries a trace context of 24 bytes, expected none or 25");
        let bf16 = frame(|f| f.head.as_mut().expect("head").format = 1);
        assert_eq!(bf16, "step 3 carries 5600 bytes of hidden states, expected 2800");
        let wanted = frame(|f| f.head.as_mut().expect("head").wanted = vec![2]);
        assert_eq!(wanted, "step 3 wants row 2 of 2");
        let short = frame(|f| f.hidden = f.hidden.slice(..8));
        assert_eq!(short, "step 3 carries 8 bytes of hidden states, expected 5600");
        let long = frame(|f| f.hidden = vec![0; 5601].into());
        assert_eq!(long, "step 3 carries 5601 bytes of hidden states, expected 5600");
    }

    #[test]
    fn an_answer_holds_the_wanted_rows_only() {
        let hidden = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let answer = Step { wanted: vec![0, 2], hidden, ..step(3) }.into_answer();
        assert_eq!((answer.rows, answer.hidden), (2, vec![1.0, 2.0, 5.0, 6.0]));
        assert!(answer.items.is_empty() && answer.wanted.is_empty());
    }

    #[test]
    fn a_failure_says_whose_fault_it_is() {
        use FailureKind::{Damaged, NonFinite, NonFiniteInput, Other};
        for kind in [Other, NonFinite, NonFiniteInput, Damaged] {
            let failure = Failure { kind, layers: 3..7, message: "no".into() };
            let frame = failure_frame(9, "phone", failure);
            let (worker, message) = ("phone".to_owned(), "no".to_owned());
            let heard = Incoming::Failure { step: 9, worker, message, kind, layers: 3..7 };
            assert_eq!(assemble(vec![frame]), Ok(Some(heard)));
        }
        let mut frame = failure_frame(9, "phone", Failure::other("no"));
        frame.failure.as_mut().expect("a failure").kind = 77;
        let heard = assemble(vec![frame]);
        assert!(matches!(heard, Ok(Some(Incoming::Failure { kind: Other, .. }))), "{heard:?}");
    }

    #[test]
    fn rejects_two_steps_mixed() {
        let mut first = step(1).into_frames(false, WireFormat::F32).remove(0);
        first.last = false;
        first.hidden = Bytes::new();
        let mut other = first.clone();
        other.step = 4;
        let error = assemble(vec![first, other]).expect_err("refused");
        assert_eq!(error, ProtocolError::Interleaved { expected: 3, found: 4 });
    }
}
