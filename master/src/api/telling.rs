//! What the answer of a chat says as it comes: thoughts, text and calls apart, each token with its text.

use std::mem::take;

use crate::reply::{Call, Reply, Shown};
use crate::scheduler::Token;

/// An answer of which a part has been told.
#[derive(Clone)]
pub(super) struct Telling {
    reply: Reply,
    /// Most calls; more are let go.
    most_calls: usize,
    /// Tokens whose text is held back.
    held: Vec<Token>,
}

impl Telling {
    /// An answer that begins as `reply` does.
    pub(super) fn new(reply: Reply, most_calls: usize) -> Self {
        Self { reply, most_calls, held: Vec::new() }
    }

    /// Takes more text and its tokens, and gives what is certain with the tokens that it is of. Nothing while it may be a
    /// call: its tokens are told with its text, if it was none.
    pub(super) fn push(&mut self, text: &str, tokens: &[Token]) -> Option<(Shown, Vec<Token>)> {
        let shown = self.reply.push(text);
        self.held.extend_from_slice(tokens);
        (shown != Shown::default()).then(|| (shown, take(&mut self.held)))
    }

    /// Ends the answer: what was held back, its tokens, and the calls.
    pub(super) fn finish(self) -> (Shown, Vec<Token>, Vec<Call>) {
        let (rest, mut calls) = self.reply.finish();
        calls.truncate(self.most_calls);
        (rest, self.held, calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::{Callable, Opening};

    fn telling(most_calls: usize) -> Telling {
        let tool = Callable { name: "f".to_owned(), parameters: None };
        Telling::new(Reply::new(Some([tool].into()), Opening::default()), most_calls)
    }

    fn token(id: u32) -> Token {
        Token { id, logprob: -1.0, top: Vec::new() }
    }

    #[test]
    fn tokens_are_told_with_the_text_that_they_are_of() {
        let mut telling = telling(1);
        let ids = |tokens: Vec<Token>| tokens.iter().map(|token| token.id).collect::<Vec<_>>();
        assert!(telling.push("", &[token(1)]).is_none(), "half a character");
        let (shown, tokens) = telling.push("Yes", &[token(2)]).expect("text");
        assert_eq!((shown.text.as_str(), ids(tokens)), ("Yes", vec![1, 2]));
        assert!(telling.push(" <tool", &[token(3)]).is_some(), "the space before it");
        assert!(
            telling.push("_kit", &[token(4)]).is_some_and(|(shown, _)| shown.text == "<tool_kit")
        );
        assert!(telling.push("<tool_call>", &[token(5)]).is_none());
        let (rest, tokens, calls) = telling.finish();
        assert_eq!((rest.text.as_str(), ids(tokens), calls.len()), ("<tool_call>", vec![5], 0));
    }

    #[test]
    fn calls_are_as_many_as_may_be() {
        let text = r#"[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]"#;
        for (most, expected) in [(1, 1), (usize::MAX, 2)] {
            let mut telling = telling(most);
            assert!(telling.push(&format!("<tool_call>{text}"), &[]).is_none());
            assert_eq!(telling.finish().2.len(), expected);
        }
    }
}
