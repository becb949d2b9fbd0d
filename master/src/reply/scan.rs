//! A reply that comes in pieces.

use std::sync::Arc;

use super::calls::{self, Call, Callable};
use super::channels::Channels;
use super::held::Held;
use super::markers::{BLOCK, BLOCK_LABEL, CALLS, CHANNEL, INNER_SUFFIX, THOUGHTS, TOOLS_PREFIX};
use super::shown::Shown;

/// How a reply begins, as far as that is known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opening {
    /// What ends the thoughts that the prompt has begun for the model, if it has.
    pub(crate) thinks: Option<&'static str>,
    /// Whether the model writes in channels: it has tokens for these.
    pub(crate) channels: bool,
    /// Whether it has tokens for thoughts that it begins anywhere, and that are nothing else.
    pub(crate) blocks: bool,
    /// Whether the prompt ends within what is said or, if it [`thinks`](Self::thinks), within thoughts.
    pub(crate) is_begun: bool,
}

/// Tells apart what a model writes, piece by piece; how it is cut does not matter.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// What may be called; `None` if calls are not looked for.
    tools: Option<Arc<[Callable]>>,
    channels: bool,
    blocks: bool,
    /// Whether any thought came.
    has_thought: bool,
    /// What is not certain yet.
    held: Held,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space came, after thoughts or before anything.
    Beginning {
        after_thoughts: bool,
    },
    /// Thoughts, which this ends; so far perhaps only the white space before them.
    Thoughts {
        end: &'static str,
        begun: bool,
    },
    /// Text, in which a call may begin.
    Text,
    /// A call, or what looks like one so far.
    Call,
    Channels(Channels),
}

/// What is between two blocks of thoughts.
const BETWEEN: &str = "\n\n";
/// How a model that writes in channels begins, where it calls a tool at once.
const RECIPIENT: &str = "to=functions.";

impl Reply {
    /// A reply of a model that may call these tools.
    pub(crate) fn new(tools: Option<Arc<[Callable]>>, opening: Opening) -> Self {
        let Opening { thinks, channels, blocks, is_begun } = opening;
        let state = match thinks {
            Some(end) => State::Thoughts { end, begun: is_begun },
            None if is_begun && channels => State::Channels(Channels::in_text()),
            None if is_begun => State::Text,
            None => State::Beginning { after_thoughts: false },
        };
        let held = Held::default();
        Self { tools, channels, blocks, has_thought: false, held, state }
    }

    /// Takes more text and gives what is certain.
    pub(crate) fn push(&mut self, piece: &str) -> Shown {
        self.held.push(piece);
        let mut shown = Shown::default();
        while self.step(&mut shown) {}
        shown
    }

    /// Ends the reply: what was held back, and the calls.
    pub(crate) fn finish(mut self) -> (Shown, Vec<Call>) {
        let mut shown = Shown::default();
        let tools = self.tools.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        let held = self.held.as_str();
        match self.state {
            State::Thoughts { begun: true, .. } => shown.thought.push_str(held.trim_end()),
            // Perhaps not even all of the label came.
            State::Thoughts { end, .. } if end == BLOCK.1 && BLOCK_LABEL.starts_with(held) => {}
            State::Thoughts { .. } => shown.thought.push_str(held.trim()),
            State::Beginning { after_thoughts: true } => shown.text.push_str(held.trim_start()),
            State::Beginning { after_thoughts: false } | State::Text => shown.text.push_str(held),
            State::Call => (shown.text, found) = calls::read(held, tools),
            State::Channels(channels) => {
                let calls = channels.finish(&mut self.held, &mut shown);
                let is_known = |call: &Call| tools.iter().any(|tool| tool.name == call.name);
                let (known, unknown): (Vec<Call>, Vec<Call>) =
                    calls.into_iter().partition(is_known);
                // What calls nothing is text, as in any other grammar.
                unknown.iter().for_each(|call| shown.text.push_str(&call.arguments));
                found = known;
            }
        }
        (shown, found)
    }

    /// Goes one step on; false if more text is needed for the next.
    fn step(&mut self, shown: &mut Shown) -> bool {
        match &mut self.state {
            State::Beginning { after_thoughts } => {
                let after_thoughts = *after_thoughts;
                self.begin(after_thoughts)
            }
            State::Thoughts { end, begun } => {
                let end = *end;
                if !*begun && end == BLOCK.1 {
                    let space = self.held.start();
                    let start = &self.held.as_str()[space..];
                    if start.starts_with(BLOCK_LABEL) {
                        self.held.take(space + BLOCK_LABEL.len());
                        *begun = true;
                    } else if BLOCK_LABEL.starts_with(start) {
                        return false;
                    }
                }
                *begun = *begun || self.held.cut_start();
                let calls_within = self.tools.is_some() && end == INNER_SUFFIX;
                let ends = [end, TOOLS_PREFIX];
                let ends = if calls_within { &ends[..] } else { &ends[..1] };
                if let Some((at, length)) = self.held.find(ends) {
                    let thought = self.held.take(at);
                    self.has_thought |= !thought.trim_end().is_empty();
                    shown.thought.push_str(thought.trim_end());
                    self.state = if self.held.as_str().starts_with(end) {
                        self.held.take(length);
                        State::Beginning { after_thoughts: true }
                    } else {
                        State::Text
                    };
                    return true;
                }
                // White space before the end is no part of them.
                let certain = self.held.len() - self.held.begun(ends);
                let longest = ends.iter().map(|end| end.len()).max().unwrap_or(0);
                let certain = self.held.trimmed(certain, longest);
                if certain > 0 {
                    self.has_thought = true;
                    shown.thought.push_str(&self.held.take(certain));
                }
                false
            }
            State::Text => self.text(shown),
            State::Call => false,
            State::Channels(channels) => channels.step(&mut self.held, shown),
        }
    }

    /// Gives text up to what marks something else.
    fn text(&mut self, shown: &mut Shown) -> bool {
        let blocks = if self.blocks { &[BLOCK.0, BLOCK.1][..] } else { &[] };
        let calls = if self.tools.is_some() { CALLS } else { &[] };
        let markers: Vec<&str> = calls.iter().chain(blocks).copied().collect();
        let first = self.held.find(&markers);
        let end = first.map_or(self.held.len() - self.held.begun(&markers), |(at, _)| at);
        shown.text.push_str(&self.held.take(end));
        let Some((_, length)) = first else { return false };
        let begins = |marker: &str| self.blocks && self.held.as_str().starts_with(marker);
        let (begins_block, ends_block) = (begins(BLOCK.0), begins(BLOCK.1));
        if !begins_block && !ends_block {
            self.state = State::Call;
            return false;
        }
        self.held.take(length);
        if begins_block {
            if self.has_thought {
                shown.thought.push_str(BETWEEN);
            }
            self.state = State::Thoughts { end: BLOCK.1, begun: false };
        }
        true
    }

    /// Finds out what the reply begins with.
    fn begin(&mut self, after_thoughts: bool) -> bool {
        let space = self.held.start();
        let start = &self.held.as_str()[space..];
        if start.is_empty() {
            return false;
        }
        let calls_tools = self.tools.is_some();
        if !after_thoughts {
            let mut markers: Vec<&str> = THOUGHTS.iter().map(|(begin, _)| *begin).collect();
            if let Some((begin, end)) = THOUGHTS.iter().find(|(begin, _)| start.starts_with(begin))
            {
                self.held.take(space + begin.len());
                self.state = State::Thoughts { end, begun: false };
                return true;
            }
            if self.channels {
                let begins = [CHANNEL, RECIPIENT];
                if begins.iter().any(|begin| start.starts_with(begin)) {
                    self.state = State::Channels(Channels::default());
                    return true;
                }
                markers.extend(begins);
            }
            if markers.iter().any(|marker| marker.starts_with(start)) {
                return false;
            }
        }
        let is_call = calls_tools && start.starts_with('{');
        if after_thoughts {
            self.held.cut_start();
        }
        self.state = if is_call { State::Call } else { State::Text };
        true
    }
}
