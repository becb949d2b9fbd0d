//! Models that write in channels, as OpenAI's harmony format has it (`gpt-oss`): each message has a header with its channel
//! and to whom it goes, then its text.

use super::calls::Call;
use super::held::Held;
use super::markers::{CHANNEL, ENDS, MESSAGE, START};
use super::shown::Shown;

/// Where a reply in channels is.
#[derive(Clone, Debug, Default)]
pub(super) struct Channels {
    /// What the message is that is being written; `None` in a header.
    body: Option<Body>,
    calls: Vec<Call>,
    /// Whether there were thoughts, and text.
    told: (bool, bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Thought,
    Text,
    /// A call of the tool of this name.
    Call(String),
}

/// What precedes a tool's name in a header.
const RECIPIENT: &str = "to=functions.";
/// The channel of thoughts.
const ANALYSIS: &str = "analysis";
/// What is between two messages of one kind.
const BETWEEN: &str = "\n\n";

impl Channels {
    /// Within a message that is said.
    pub(super) fn in_text() -> Self {
        Self { body: Some(Body::Text), calls: Vec::new(), told: (false, true) }
    }

    /// Takes what is certain of `held`; false if more text is needed.
    pub(super) fn step(&mut self, held: &mut Held, shown: &mut Shown) -> bool {
        let Some(body) = &self.body else {
            let Some((at, length)) = held.find(&[MESSAGE]) else { return false };
            let body = Body::of(&held.take(at));
            held.take(length);
            let (thought, text) = &mut self.told;
            match body {
                Body::Thought if std::mem::replace(thought, true) => shown.thought += BETWEEN,
                Body::Text if std::mem::replace(text, true) => shown.text += BETWEEN,
                _ => {}
            }
            self.body = Some(body);
            return true;
        };
        match (held.find(&ENDS), body) {
            (None, Body::Call(_)) => false,
            (None, body) => {
                let certain = held.len() - held.begun(&ENDS);
                body.shows(shown).push_str(&held.take(certain));
                false
            }
            (Some((at, length)), _) => {
                let text = held.take(at);
                held.take(length);
                self.end(&text, shown);
                true
            }
        }
    }

    /// The calls; what is left of the last message is shown, and what looked like a header.
    pub(super) fn finish(mut self, held: &mut Held, shown: &mut Shown) -> Vec<Call> {
        let text = held.take(held.len());
        if self.body.is_some() {
            self.end(&text, shown);
        } else if ![START, CHANNEL].iter().any(|mark| text.trim_start().starts_with(mark)) {
            shown.text.push_str(&text);
        }
        self.calls
    }

    /// A message ends with this text.
    fn end(&mut self, text: &str, shown: &mut Shown) {
        match self.body.take() {
            Some(Body::Call(name)) => {
                let arguments = text.trim().to_owned();
                self.calls.push(Call { name, arguments });
            }
            Some(body) => body.shows(shown).push_str(text),
            None => {}
        }
    }
}

impl Body {
    /// What the message with this header is.
    fn of(header: &str) -> Self {
        if let Some((_, name)) = header.split_once(RECIPIENT) {
            let ends = |c: char| c.is_whitespace() || c == '<';
            return Self::Call(name.split(ends).next().unwrap_or_default().to_owned());
        }
        let channel = header.split_once(CHANNEL).map_or("", |(_, channel)| channel.trim());
        if channel.starts_with(ANALYSIS) { Self::Thought } else { Self::Text }
    }

    fn shows<'a>(&self, shown: &'a mut Shown) -> &'a mut String {
        match self {
            Self::Thought => &mut shown.thought,
            Self::Text | Self::Call(_) => &mut shown.text,
        }
    }
}
