//! A settings file, beneath the command line of both programs.
use std::process::Command;

use cake_tests::master::path;
use cake_tests::{Master, Running, golden, programs};
use serde_json::Value;

use super::LIMIT;

#[test]
fn a_file_in_the_state_directory_holds_where_the_command_line_says_nothing() {
    let master = Master::alone();
    let file = master.state().join("cake.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    write("[cluster]\nalone = true\n\n[answers]\nmax-tokens = 3\nignore-eos = true\n");
    let llama = path(&golden("llama").path);
    let made = |more: &[&str]| {
        let asked = [&["run", &llama, "hello", "--json"], more].concat();
        let answer = Running::start(&mut master.bare(&asked)).finish(LIMIT).success().json();
        answer["output_ids"].as_array().expect("ids").len()
    };
    assert_eq!((made(&[]), made(&["--max-tokens", "2"])), (3, 2));
    let told = Running::start(&mut master.bare(&["config", "--json"])).finish(LIMIT).success();
    let told = told.json();
    let tokens = told.as_array().expect("settings").iter();
    let tokens = tokens.filter(|it| it["section"] == "answers" && it["key"] == "max-tokens");
    let tokens: Vec<&Value> = tokens.collect();
    assert_eq!(
        (tokens[0]["value"].as_str(), tokens[0]["origin"]["file"]["line"].as_u64()),
        (Some("3"), Some(5))
    );

    write("[answers]\nmax-token = 3\n");
    let refused = Running::start(&mut master.bare(&["run", &llama, "hello"])).finish(LIMIT);
    assert_eq!(refused.status.code(), Some(2));
    let expected = r#"cake.toml:2: [answers] has no "max-token"; the nearest is "max-tokens""#;
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
}

#[test]
fn a_workers_section_may_stand_beside_a_masters_and_is_read_by_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("cake.toml");
    let config = file.to_str().expect("a path");
    let ended = |text: &str, program: &std::path::Path, args: &[&str]| {
        std::fs::write(&file, text).expect("written");
        let mut command = Command::new(program);
        command.args(args).args(["--config", config]).current_dir(directory.path());
        Running::start(&mut command).finish(LIMIT)
    };
    let text = "[serve]\nqueue = 1\n[worker]\nname = \"attic\"\nmin-battery = 30\n";
    let told = ended(text, &programs().worker, &["config"]).success().stdout;
    assert!(told.contains("name = \"attic\"") && told.contains(&format!("{config}:5")), "{told}");
    let wrong = "[worker]\nmin-battery = 300\n";
    for (program, args) in
        [(&programs().worker, &["--listen", "127.0.0.1:0"][..]), (&programs().master, &["list"])]
    {
        let refused = ended(wrong, program, args);
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
        let expected = r#"cake.toml:2: min-battery cannot be "300": 300 is not in 0..=90"#;
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}
