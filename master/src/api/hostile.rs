//! What strangers can make this module read, for those who try it with odd bytes. Not for anything else.

use super::chat::Asked;
use super::measure::parse;
use super::messages::{self, MessagesRequest};
use super::ollama;
use super::responses::{self, ResponsesRequest};
use super::tokens::{self, DetokenizeRequest, TokenizeRequest};
use super::wire::{ChatRequest, CompletionRequest, EmbeddingsRequest};
use super::{completions, embeddings};
use crate::reply::{Callable, Opening, Reply};

/// Takes bytes as the body of each kind of request, as far as no model is needed.
pub fn request(bytes: &[u8]) {
    if let Ok(request) = parse::<ChatRequest>(bytes) {
        Asked::new(request).ok();
    }
    if let Ok(request) = parse::<MessagesRequest>(bytes) {
        messages::asked(request).ok();
    }
    if let Ok(request) = parse::<ResponsesRequest>(bytes) {
        responses::first(request).ok();
    }
    ollama::hostile(bytes);
    if let Ok(request) = parse::<CompletionRequest>(bytes) {
        completions::Asked::new(request).ok();
    }
    if let Ok(request) = parse::<TokenizeRequest>(bytes) {
        tokens::Asked::new(request).ok();
    }
    parse::<DetokenizeRequest>(bytes).ok();
    if let Ok(request) = parse::<EmbeddingsRequest>(bytes) {
        embeddings::Asked::new(request).ok();
    }
}

/// Takes bytes as what a model writes that may call the tools `f` and `g`: in one piece, and in pieces of `size`
/// characters.
///
/// # Panics
/// If the pieces matter, or if text without any mark is not shown as it is.
pub fn tool_calls(bytes: &[u8], size: usize) {
    let text = String::from_utf8_lossy(bytes);
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunks(size.max(1)).map(|piece| piece.iter().collect::<String>());
    let callable = |name: &str| Callable { name: name.to_owned(), parameters: None };
    let told_apart = |pieces: &mut dyn Iterator<Item = String>| {
        let opening = Opening { channels: true, blocks: true, ..Opening::default() };
        let mut reply = Reply::new(Some([callable("f"), callable("g")].into()), opening);
        let mut all = crate::reply::Shown::default();
        for piece in pieces {
            let shown = reply.push(&piece);
            all.thought += &shown.thought;
            all.text += &shown.text;
        }
        let (rest, calls) = reply.finish();
        (all.thought + &rest.thought, all.text + &rest.text, calls)
    };
    let whole = told_apart(&mut std::iter::once(text.to_string()));
    assert_eq!(told_apart(&mut { pieces }), whole, "the pieces matter");
    let (thought, said, calls) = whole;
    let is_marked = !calls.is_empty() || text.contains('<') || text.contains('[');
    assert!(is_marked || (thought.is_empty() && said == text), "text is lost");
}
