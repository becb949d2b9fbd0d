//! What hostile templates may reach, for fuzzers: the same parser and renderer in this process.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use super::template::{ChatTemplate, Conversation};

/// Steps of a rendering here: enough for any loop to show what it does.
const STEPS: u64 = 20_000;
/// Most bytes of its text.
pub const MOST_BYTES: usize = 1 << 20;

/// Renders messages with a template: `SOURCE`, a zero byte, and a list of messages as JSON.
///
/// # Panics
/// If the text is longer than it may be.
pub fn template(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let messages = serde_json::from_slice(parts.next().unwrap_or(b"[]")).unwrap_or_default();
    let conversation = Conversation {
        messages: Cow::Owned(messages),
        tools: Cow::Borrowed(&[]),
        add_generation_prompt: true,
        special: Cow::Owned(BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())])),
        most_bytes: MOST_BYTES,
    };
    let template = ChatTemplate::new(&source, "template".to_owned(), SystemTime::now);
    if let Ok(text) = template.with_steps(STEPS).render_here(&conversation) {
        assert!(text.len() <= MOST_BYTES, "{} bytes", text.len());
    }
}
