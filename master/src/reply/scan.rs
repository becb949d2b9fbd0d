//! A reply that comes in pieces.

use std::sync::Arc;

use super::calls::{self, Call, Callable};
use super::channels::Channels;
use super::held::Held;
use super::markers::{CALLS, CHANNEL, THOUGHTS};
use super::shown::Shown;

/// How a reply begins, as far as that is known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opening {
    /// What ends the thoughts that the prompt has begun for the model, if it has.
    pub(crate) thinks: Option<&'static str>,
    /// Whether the model writes in channels: it has tokens for these.
    pub(crate) channels: bool,
    /// Whether the prompt ends within what is said or, if it [`thinks`](Self::thinks), within thoughts.
    pub(crate) is_begun: bool,
}

/// Tells apart what a model writes, piece by piece; how it is cut does not matter.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// What may be called; `None` if calls are not looked for.
    tools: Option<Arc<[Callable]>>,
    channels: bool,
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

/// How a model that writes in channels begins, where it calls a tool at once.
const RECIPIENT: &str = "to=functions.";

impl Reply {
    /// A reply of a model that may call these tools.
    pub(crate) fn new(tools: Option<Arc<[Callable]>>, opening: Opening) -> Self {
        let Opening { thinks, channels, is_begun } = opening;
        let state = match thinks {
            Some(end) => State::Thoughts { end, begun: is_begun },
            None if is_begun && channels => State::Channels(Channels::in_text()),
            None if is_begun => State::Text,
            None => State::Beginning { after_thoughts: false },
        };
        Self { tools, channels, held: Held::default(), state }
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
            State::Thoughts { begun, .. } => {
                let held = if begun { held } else { held.trim_start() };
                shown.thought.push_str(held.trim_end());
            }
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
                *begun = *begun || self.held.cut_start();
                let end = *end;
                if let Some((at, length)) = self.held.find(&[end]) {
                    shown.thought.push_str(self.held.take(at).trim_end());
                    self.held.take(length);
                    self.state = State::Beginning { after_thoughts: true };
                    return true;
                }
                // White space before the end is no part of them.
                let certain = self.held.len() - self.held.begun(&[end]);
                let certain = self.held.trimmed(certain, end.len());
                if certain > 0 {
                    shown.thought.push_str(&self.held.take(certain));
                }
                false
            }
            State::Text if self.tools.is_none() => {
                shown.text.push_str(&self.held.take(self.held.len()));
                false
            }
            State::Text => {
                let first = self.held.find(CALLS).map(|(at, _)| at);
                let end = first.unwrap_or(self.held.len() - self.held.begun(CALLS));
                shown.text.push_str(&self.held.take(end));
                if first.is_some() {
                    self.state = State::Call;
                }
                false
            }
            State::Call => false,
            State::Channels(channels) => channels.step(&mut self.held, shown),
        }
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
