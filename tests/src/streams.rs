//! Several answers at once, and what makes two runs of them the same.
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::Server;

/// Where completions are asked for.
pub const COMPLETIONS: &str = "/v1/completions";
/// Answers at once.
pub const STREAMS: usize = 8;

/// Text and log-probabilities of an answer.
pub type Said = (String, Vec<String>);

/// Ids of a prompt, different ones for each number.
pub fn prompt(number: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|at| ((number * 31 + at * 7) % 250) as u32 + 3).collect()
}

/// Text and log-probabilities of a sampled answer of so many tokens, streamed; of this number always the same.
///
/// # Panics
/// If it is not whole.
pub fn answer(server: &Server, number: usize, tokens: usize) -> Said {
    answer_heard(server, number, tokens, || {})
}

/// The same; whenever something of it comes, `heard` is called.
///
/// # Panics
/// As [`answer`].
pub fn answer_heard(
    server: &Server,
    number: usize,
    tokens: usize,
    mut heard: impl FnMut(),
) -> Said {
    let request = json!({
        "prompt": prompt(number, 40 + 9 * number), "max_tokens": tokens, "temperature": 1, "seed": number,
        "ignore_eos": true, "logprobs": 0, "stream": true,
    });
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    for event in server.stream(COMPLETIONS, &request) {
        let Ok(event) = serde_json::from_str::<Value>(&event) else { continue };
        heard();
        assert!(event.get("error").is_none(), "{event}");
        let choice = &event["choices"][0];
        text += choice["text"].as_str().unwrap_or_default();
        let more = choice["logprobs"]["token_logprobs"].as_array();
        logprobs.extend(more.into_iter().flatten().map(Value::to_string));
    }
    assert_eq!(logprobs.len(), tokens, "an answer of {number}");
    (text, logprobs)
}

/// Texts and log-probabilities of [`STREAMS`] sampled answers of so many tokens that are streamed at once, while
/// something happens. Until that is over each is asked for again: whatever happens, it happens to answers.
///
/// # Panics
/// If one is not whole, or not the same each time.
pub fn together(server: &Server, tokens: usize, meanwhile: impl FnOnce()) -> Vec<Said> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let one = |number: usize| {
            scope.spawn(move || {
                let said = answer(server, number, tokens);
                while !over.load(Ordering::Relaxed) {
                    let again = answer(server, number, tokens);
                    assert!(again == said, "another answer of {number} than before");
                }
                said
            })
        };
        let asked: Vec<_> = (0..STREAMS).map(one).collect();
        let until = Over(over);
        meanwhile();
        drop(until);
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    })
}

/// Tells others, when it is dropped, that they need not go on: so that they come to their end however that comes.
#[derive(Debug)]
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What has been counted under a name so far.
pub fn count(server: &Server, name: &str) -> f64 {
    server.metric(name).unwrap_or_default()
}
