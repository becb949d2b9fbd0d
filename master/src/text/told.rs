//! What a template is told of a conversation, and where its text is to end: as transformers' `apply_chat_template` has it
//! with `add_generation_prompt` and `continue_final_message`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::Error;

/// What a template is told, and where its text is to end.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// What templates know of each: `role`, `content`, `tool_calls`.
    pub messages: &'a [Value],
    /// What the model may call; it is told of them if there are any.
    pub tools: &'a [Value],
    /// What else the template is told, by name.
    pub variables: &'a BTreeMap<String, Value>,
    /// Where the text ends.
    pub ending: Ending,
}

/// Where the text of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Where the model's answer begins.
    #[default]
    Answer,
    /// After the last message.
    Turn,
    /// After the last message's content, which the model goes on with.
    Content,
}

/// What is added to a content that is gone on with, to be found in what a template makes of it. If the space at its end
/// is not there any more, the template trims contents.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Nothing beside a conversation.
const NOTHING: &BTreeMap<String, Value> = &BTreeMap::new();

impl<'a> Told<'a> {
    /// A conversation, and nothing beside it.
    pub(super) fn of(messages: &'a [Value], ending: Ending) -> Self {
        Self { messages, tools: &[], variables: NOTHING, ending }
    }
}

/// The same with a mark where the text is to end, if that is within a message.
pub(super) struct Marked<'a> {
    told: Told<'a>,
    messages: Cow<'a, [Value]>,
    /// The last content, if it is gone on with.
    pub(super) content: Option<&'a str>,
}

impl<'a> Marked<'a> {
    /// Puts the mark there.
    ///
    /// # Errors
    /// [`Error::NotContinued`] if the last message has no content to go on with.
    pub(super) fn new(told: Told<'a>) -> Result<Self, Error> {
        let mut messages = Cow::Borrowed(told.messages);
        let mut content = None;
        if told.ending == Ending::Content {
            let last = told.messages.last().and_then(|last| last.get("content"));
            content = Some(last.and_then(Value::as_str).ok_or(Error::NotContinued)?);
            let last = messages.to_mut().last_mut().and_then(|last| last.get_mut("content"));
            if let Some(Value::String(content)) = last {
                content.push_str(MARK);
            }
        }
        Ok(Self { told, messages, content })
    }

    /// What the template is told.
    pub(super) fn told(&self) -> Told<'_> {
        Told { messages: &self.messages, ..self.told }
    }

    /// What a template made of it, up to where it is to end.
    ///
    /// # Errors
    /// [`Error::NotContinued`] if the template left out the mark, or some of the content before it.
    pub(super) fn cut(&self, mut text: String) -> Result<String, Error> {
        if let Some(content) = self.content {
            let at = text.rfind(MARK.trim_end()).filter(|_| text.contains(content.trim()));
            let at = at.ok_or(Error::NotContinued)?;
            let keeps_space = text[at..].starts_with(MARK);
            text.truncate(at);
            if !keeps_space {
                text.truncate(text.trim_end().len());
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_ends_with_the_content_however_a_template_treats_space() {
        let messages = [json!({"role": "user", "content": "a"}), json!({"content": "It is "})];
        let marked = Marked::new(Told::of(&messages, Ending::Content)).unwrap();
        let [first, last] = marked.told().messages else { panic!() };
        assert_eq!(first, &messages[0]);
        let said = last["content"].as_str().unwrap();
        for (text, expected) in [
            (format!("<a>{said}</a>{said}<end>"), format!("<a>{said}</a>It is ")),
            (format!("<a>{}<end>", said.trim()), "<a>It is".to_owned()),
        ] {
            assert_eq!(marked.cut(text).unwrap(), expected);
        }
        for lost in ["<a>It is<end>".to_owned(), format!("<a>{}<end>", said.replace("It", ""))] {
            assert!(matches!(marked.cut(lost), Err(Error::NotContinued)));
        }
        let no_text = [json!({"content": ["a"]})];
        for messages in [&no_text[..], &[]] {
            assert!(Marked::new(Told::of(messages, Ending::Content)).is_err());
            let whole = Marked::new(Told::of(messages, Ending::Turn)).unwrap();
            assert_eq!(whole.cut("as it is".to_owned()).unwrap(), "as it is");
        }
    }
}
