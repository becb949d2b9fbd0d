//! Chat templates of published models, each with some conversations as Hugging Face transformers renders them: what is
//! rendered here is equal to the byte, and refused where it is refused there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::Error;
use super::template::{ChatTemplate, Conversation, MAX_OUTPUT_BYTES};
use super::told::{Ending, Marked, Told};

/// What does not come out as it does there, and why: template, conversation and reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("llama-cpp-deepseek-r1", "tool_round", GENERATOR),
    ("llama-cpp-deepseek-r1", "tools", GENERATOR),
    ("meetkai-functionary-medium-v3.1", "tool_round", MARKUP),
    ("meetkai-functionary-medium-v3.1", "tools", MARKUP),
];
const GENERATOR: &str =
    "refused there, as `map` makes a generator, of which `tojson` makes nothing; here the tools";
const MARKUP: &str =
    "there `safe` has what is added to it escaped for HTML, which no model was told of tools";
/// No more than these may be.
const MOST_EXCEPTIONS: usize = 10;

/// The file beside the templates.
#[derive(Deserialize)]
struct Rendered {
    conversations: BTreeMap<String, Asked>,
    special: BTreeMap<String, String>,
    rendered: BTreeMap<String, BTreeMap<String, Answer>>,
}

#[derive(Deserialize)]
struct Asked {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    add_generation_prompt: Option<bool>,
    #[serde(default, rename = "kw")]
    variables: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Text(String),
    Error(String),
}

/// Noon on 15 January 2026, which is when they were rendered.
fn then() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_768_478_400)
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/templates"))
}

/// What does not come out of the templates as `file` says, and why: template, conversation and reason. `ending` is that of
/// conversations that do not say otherwise; there are at least `least` of them.
fn wrong(file: &str, ending: Ending, least: usize) -> Vec<(String, String, String)> {
    let json = std::fs::read(folder().join(file)).unwrap();
    let all: Rendered = serde_json::from_slice(&json).unwrap();
    assert!(all.rendered.len() >= 70 && all.conversations.len() >= least);
    let mut wrong = Vec::new();
    for (name, answers) in &all.rendered {
        let source = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, name.clone(), then);
        for (conversation, expected) in answers {
            let asked = &all.conversations[conversation];
            let Asked { messages, tools, variables, add_generation_prompt } = asked;
            let ending = if *add_generation_prompt == Some(false) { Ending::Turn } else { ending };
            let found = rendered(&template, Told { messages, tools, variables, ending }, &all);
            let why = match (expected, found) {
                (Answer::Text(expected), Ok(found)) if *expected == found => continue,
                (Answer::Error(_), Err(_)) => continue,
                (Answer::Text(expected), Ok(found)) => {
                    let at = expected.bytes().zip(found.bytes()).take_while(|(a, b)| a == b);
                    let at = expected.floor_char_boundary(at.count().saturating_sub(20));
                    let rest = |text: &str| -> String {
                        text.get(at..).unwrap_or_default().chars().take(70).collect()
                    };
                    format!("expected {:?}, found {:?}", rest(expected), rest(&found))
                }
                (Answer::Text(_), Err(error)) => error.to_string(),
                (Answer::Error(expected), Ok(_)) => format!("refused there: {expected}"),
            };
            wrong.push((name.clone(), conversation.clone(), why));
        }
    }
    wrong
}

fn rendered(template: &ChatTemplate, told: Told<'_>, all: &Rendered) -> Result<String, Error> {
    let marked = Marked::new(told)?;
    let told = marked.told();
    marked.cut(template.render(&Conversation {
        messages: Cow::Borrowed(told.messages),
        tools: Cow::Borrowed(told.tools),
        variables: Cow::Borrowed(told.variables),
        add_generation_prompt: told.ending == Ending::Answer,
        special: Cow::Borrowed(&all.special),
        most_bytes: MAX_OUTPUT_BYTES,
    })?)
}

#[test]
fn published_templates_go_on_with_what_was_said_as_the_reference_does() {
    let wrong = wrong("continued.json", Ending::Content, 3);
    wrong.iter().for_each(|(name, conversation, why)| println!("{name}, {conversation}: {why}"));
    let found: Vec<_> = wrong.iter().map(|(name, it, _)| (name.as_str(), it.as_str())).collect();
    // There these look for thoughts under other names of the field, under which transformers puts them, too.
    assert_eq!(found, [("LFM2.5-8B-A1B", "reasoning"), ("openai-gpt-oss-120b", "reasoning")]);
}

#[test]
fn published_templates_render_as_the_reference_renders_them() {
    let wrong = wrong("rendered.json", Ending::Answer, 10);
    wrong.iter().for_each(|(name, conversation, why)| println!("{name}, {conversation}: {why}"));
    let found: Vec<_> = wrong
        .iter()
        .map(|(name, conversation, _)| (name.as_str(), conversation.as_str()))
        .collect();
    let listed: Vec<_> = EXCEPTIONS.iter().map(|(name, it, _why)| (*name, *it)).collect();
    assert_eq!(found, listed);
    assert!(EXCEPTIONS.len() <= MOST_EXCEPTIONS);
}
