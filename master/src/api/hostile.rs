//! What strangers can make this module read, for those who try it with odd bytes. Not for anything else.

use super::chat::Asked;
use super::measure::parse;
use super::tools::ToolScan;
use super::wire::{ChatRequest, CompletionRequest, EmbeddingsRequest};

/// Takes bytes as the body of each kind of request, as far as no model is needed.
pub fn request(bytes: &[u8]) {
    if let Ok(request) = parse::<ChatRequest>(bytes) {
        Asked::new(request).ok();
    }
    parse::<CompletionRequest>(bytes).ok();
    parse::<EmbeddingsRequest>(bytes).ok();
}

/// Takes bytes as what a model writes that may call the tools `f` and `g`: in one piece, and in pieces of `size`
/// characters.
///
/// # Panics
/// If the pieces matter, or if text that calls nothing is not shown as it is.
pub fn tool_calls(bytes: &[u8], size: usize) {
    let text = String::from_utf8_lossy(bytes);
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunks(size.max(1)).map(|piece| piece.iter().collect::<String>());
    let scanned = |pieces: &mut dyn Iterator<Item = String>| {
        let mut scan = ToolScan::new(["f".to_owned(), "g".to_owned()].into());
        let shown: String = pieces.map(|piece| scan.push(&piece)).collect();
        let (rest, calls) = scan.finish();
        let calls = calls.into_iter().map(|call| (call.function.name, call.function.arguments));
        (shown + &rest, calls.collect::<Vec<_>>())
    };
    let whole = scanned(&mut std::iter::once(text.to_string()));
    assert_eq!(scanned(&mut { pieces }), whole, "the pieces matter");
    assert!(!whole.1.is_empty() || whole.0 == text, "text is lost");
}
