//! What hostile templates may reach, for fuzzers: the processes that render them for the program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use super::Error;
use super::apart::{Apart, render_by};
use super::template::{ChatTemplate, Conversation};

/// Steps of a rendering here: enough for any loop to show what it does.
const STEPS: u64 = 20_000;
/// Most bytes of its text.
const MOST_BYTES: usize = 1 << 20;

thread_local! {
    static RENDERER: Apart = Apart::default();
}

/// Renders messages with a template: `SOURCE`, a zero byte, and a list of messages as JSON. The renderer is a process
/// of `program`, a `cake-master`, for every thread that calls.
///
/// # Panics
/// If the text is longer than it may be, or the process ends other than by one of its bounds.
pub fn template(program: &Path, bytes: &[u8]) {
    render_by(program.to_owned());
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let messages = serde_json::from_slice(parts.next().unwrap_or(b"[]")).unwrap_or_default();
    let conversation = Conversation {
        messages: Cow::Owned(messages),
        tools: Cow::Borrowed(&[]),
        variables: Cow::Owned(BTreeMap::new()),
        add_generation_prompt: true,
        special: Cow::Owned(BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())])),
        most_bytes: MOST_BYTES,
    };
    let template = ChatTemplate::new(&source, "template".to_owned(), SystemTime::now);
    let template = template.with_steps(STEPS);
    match RENDERER.with(|renderer| renderer.render(&template, conversation)) {
        Ok(text) => assert!(text.len() <= MOST_BYTES, "{} bytes", text.len()),
        Err(error @ (Error::NoRenderer { .. } | Error::RendererEnded { .. })) => panic!("{error}"),
        Err(_) => {}
    }
}
