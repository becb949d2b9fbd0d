//! Conversations in a terminal.
use std::io::Write;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{Finished, Master, demo_model};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Types `lines` into a chat.
fn chat(master: &Master, args: &[&str], lines: &[&str]) -> Finished {
    let mut chat = master.start(&[&["chat", &path(&demo_model())], args].concat());
    let mut input = chat.stdin().expect("not taken yet");
    for line in lines {
        writeln!(input, "{line}").expect("it listens");
    }
    drop(input);
    chat.finish(LIMIT).success()
}

#[test]
fn a_conversation_goes_on_when_the_context_is_full() {
    let master = Master::alone();
    let args = ["--context", "160", "--max-tokens", "24", "--temperature", "0", "--ignore-eos"];
    let args = [&args[..], &["--system", "You tell stories."]].concat();
    let file = master.state().join("story.json");
    let save = format!("/save {}", file.display());
    let turns = ["Tell me of an owl.", "And of a fox.", "And of a bear.", "And of an ant."];
    let lines: Vec<&str> = turns.iter().chain(&turns).copied().chain([save.as_str()]).collect();
    let said = chat(&master, &args, &lines);
    assert!(said.stderr.contains("the context of 160 tokens is full"), "{}", said.stderr);
    assert!(said.stderr.contains("not told of the "), "{}", said.stderr);
    assert_eq!(said.stderr.matches("(stopped after 24 tokens)").count(), 8, "{}", said.stderr);
    // What the model has forgotten is saved all the same.
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).expect("saved")).expect("JSON");
    let saved = saved.as_array().expect("messages");
    assert_eq!(saved.len(), 1 + 2 * 8);
    assert_eq!(saved[0]["content"], "You tell stories.");
    assert_eq!(saved[1]["content"], turns[0]);
    // A message that is too long by itself costs neither the chat nor what was said before.
    let long = "owl ".repeat(400);
    let said = chat(&master, &args, &[turns[0], &long, turns[1]]);
    assert!(said.stderr.contains("make your message shorter"), "{}", said.stderr);
    assert!(!said.stderr.contains("not told of"), "{}", said.stderr);
    assert_eq!(said.stderr.matches("(stopped after 24 tokens)").count(), 2, "{}", said.stderr);
}

#[test]
fn what_begins_with_a_slash_is_for_the_program() {
    let master = Master::alone();
    let args = ["--max-tokens", "12", "--temperature", "0", "--ignore-eos"];
    let (text, taken) = (master.state().join("chat.txt"), master.state().join("taken.txt"));
    std::fs::write(&taken, "mine").expect("written");
    let (save, over) = (format!("/save {}", text.display()), format!("/save {}", taken.display()));
    let lines = [
        "/help",
        "/quit",
        "Hello!",
        "/clear",
        "/system Be brief.",
        "Hello!",
        "//help",
        &save,
        &over,
    ];
    let said = chat(&master, &args, &lines);
    let told = &said.stderr;
    assert!(told.contains("/system TEXT"), "{told}");
    assert!(told.contains("/quit is no command"), "{told}");
    assert!(told.contains("the conversation begins again"), "{told}");
    assert!(told.contains(&format!("cannot write {}", taken.display())), "{told}");
    assert_eq!(told.matches("(stopped after 12 tokens)").count(), 3, "commands are not answered");
    assert_eq!(std::fs::read_to_string(&taken).expect("there"), "mine");
    let saved = std::fs::read_to_string(&text).expect("saved");
    let before = "system: Be brief.\n\nuser: Hello!\n\nassistant: ";
    assert!(saved.starts_with(before), "{saved}");
    assert!(saved.contains("\nuser: /help\n"), "{saved}");
}
