//! A reply that comes in pieces.

use std::sync::Arc;

use super::calls::{self, Call, Callable};
use super::channels::Channels;
use super::markers::{CALLS, CHANNEL, THOUGHTS};
use super::shown::{Shown, begun_at_end};

/// Tells apart what a model writes, piece by piece; how it is cut does not matter.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// What may be called; `None` if calls are not looked for.
    tools: Option<Arc<[Callable]>>,
    /// What is not certain yet.
    held: String,
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
    /// A reply of a model that may call these tools. `thinks`: what ends the thoughts that its prompt has begun.
    pub(crate) fn new(tools: Option<Arc<[Callable]>>, thinks: Option<&'static str>) -> Self {
        let state = match thinks {
            Some(end) => State::Thoughts { end, begun: false },
            None => State::Beginning { after_thoughts: false },
        };
        Self { tools, held: String::new(), state }
    }

    /// Takes more text and gives what is certain.
    pub(crate) fn push(&mut self, piece: &str) -> Shown {
        self.held.push_str(piece);
        let mut shown = Shown::default();
        while self.step(&mut shown) {}
        shown
    }

    /// Ends the reply: what was held back, and the calls.
    pub(crate) fn finish(mut self) -> (Shown, Vec<Call>) {
        let mut shown = Shown::default();
        let tools = self.tools.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        match self.state {
            State::Thoughts { begun, .. } => {
                let held = if begun { &*self.held } else { self.held.trim_start() };
                shown.thought.push_str(held.trim_end());
            }
            State::Beginning { after_thoughts: true } => {
                shown.text.push_str(self.held.trim_start());
            }
            State::Beginning { after_thoughts: false } | State::Text => shown.text = self.held,
            State::Call => (shown.text, found) = calls::read(&self.held, tools),
            State::Channels(channels) => {
                found = channels.finish(&mut self.held, &mut shown);
                found.retain(|call| tools.iter().any(|tool| tool.name == call.name));
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
                if !*begun {
                    cut_start(&mut self.held);
                    *begun = !self.held.is_empty();
                }
                if let Some(at) = self.held.find(*end) {
                    shown.thought.push_str(self.held[..at].trim_end());
                    self.held.drain(..at + end.len());
                    self.state = State::Beginning { after_thoughts: true };
                    return true;
                }
                // White space before the end is no part of them.
                let certain = self.held.len() - begun_at_end(&self.held, &[*end]);
                let certain = self.held[..certain].trim_end().len();
                shown.thought.extend(self.held.drain(..certain));
                false
            }
            State::Text if self.tools.is_none() => {
                shown.text.push_str(&std::mem::take(&mut self.held));
                false
            }
            State::Text => {
                let first = CALLS.iter().filter_map(|begin| self.held.find(begin)).min();
                let end = first.unwrap_or(self.held.len() - begun_at_end(&self.held, CALLS));
                shown.text.extend(self.held.drain(..end));
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
        let start = self.held.trim_start();
        if start.is_empty() {
            return false;
        }
        let (calls_tools, mut markers) = (self.tools.is_some(), vec![CHANNEL]);
        if calls_tools {
            markers.push(RECIPIENT);
        }
        if !after_thoughts {
            for (begin, end) in THOUGHTS {
                if let Some(rest) = start.strip_prefix(begin) {
                    self.held = rest.to_owned();
                    self.state = State::Thoughts { end, begun: false };
                    return true;
                }
                markers.push(begin);
            }
            if [CHANNEL, RECIPIENT].iter().any(|it| markers.contains(it) && start.starts_with(it)) {
                self.state = State::Channels(Channels::default());
                return true;
            }
            if markers.iter().any(|marker| marker.starts_with(start)) {
                return false;
            }
        }
        let is_call = calls_tools && start.starts_with('{');
        if after_thoughts {
            cut_start(&mut self.held);
        }
        self.state = if is_call { State::Call } else { State::Text };
        true
    }
}

/// Takes the white space off the beginning.
fn cut_start(text: &mut String) {
    let space = text.len() - text.trim_start().len();
    text.drain(..space);
}
