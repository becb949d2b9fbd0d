//! What a program does with settings, from file to arguments.

use std::path::Path;

use clap::{Args, CommandFactory};

use super::*;

const PROGRAM: Program =
    Program { name: "program", own: None, shared: &[("cluster", "Workers")], others: false };

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    config: ConfigArgs,
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Sub,
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    Serve(Serve),
    Run {
        prompt: String,
        #[command(flatten)]
        workers: Workers,
    },
    #[command(hide = true)]
    Child {
        #[arg(long)]
        queue: Option<usize>,
    },
}

#[derive(Args, Debug)]
struct Serve {
    model: Option<String>,
    /// How many. Default: by the model.
    #[arg(long, value_name = "N")]
    queue: Option<usize>,
    #[arg(long, default_value = "8080")]
    listen: String,
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "11434")]
    also: Option<String>,
    #[arg(long)]
    origin: Vec<String>,
    #[command(flatten)]
    workers: Workers,
}

#[derive(Args, Debug)]
struct Workers {
    #[arg(long = "worker", value_delimiter = ',', env = "CAKE_SETTINGS_TEST_WORKERS")]
    workers: Vec<String>,
    #[arg(long, conflicts_with = "workers")]
    alone: bool,
}

/// Parses `line` with a file that says `text`.
fn parsed(text: &str, line: &str) -> Result<Cli, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cake.toml");
    std::fs::write(&path, text).expect("written");
    let words = ["program", "--config", path.to_str().expect("a path")];
    let words = words.into_iter().chain(line.split_whitespace()).map(OsString::from);
    try_parse(&PROGRAM, words.collect()).map_err(|refusal| match refusal {
        Refusal::Settings(error) => {
            error.to_string().replace(directory.path().to_str().expect("a path"), "")
        }
        Refusal::Arguments { error, .. } => format!("clap: {error}"),
    })
}

fn serve(text: &str, line: &str) -> Serve {
    match parsed(text, line).expect("parsed").command {
        Sub::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_beneath_the_command_line_and_above_defaults() {
    let text = "[serve]\nqueue = 7\nlisten = \"0.0.0.0:1\"\norigin = ['a', 'b']\nalso = true\n\
                [cluster]\nworker = \"w:1\"\n[logs]\nverbose = 2\n";
    let all = serve(text, "serve");
    assert_eq!((all.queue, all.listen.as_str()), (Some(7), "0.0.0.0:1"));
    assert_eq!(
        (all.origin.as_slice(), all.also.as_deref()),
        (&["a", "b"].map(str::to_owned)[..], Some("11434"))
    );
    assert_eq!(all.workers.workers, ["w:1"]);
    assert_eq!(parsed(text, "serve").expect("parsed").verbose, 2);
    let typed = serve(text, "serve --queue 9 --origin c --also=1 -- model");
    assert_eq!((typed.queue, typed.listen.as_str()), (Some(9), "0.0.0.0:1"));
    assert_eq!(
        (typed.origin.as_slice(), typed.also.as_deref()),
        (&["c".to_owned()][..], Some("1"))
    );
    assert_eq!(typed.model.as_deref(), Some("model"));
    assert_eq!(serve("", "serve").listen, "8080");
    assert_eq!(serve("[serve]\nlisten = ''", "serve").listen, "", "nothing is a text, too");
}

#[test]
fn what_is_typed_takes_away_what_excludes_it() {
    let alone = serve("[cluster]\nworker = ['w:1']\n", "serve --alone").workers;
    assert!(alone.alone && alone.workers.is_empty(), "{alone:?}");
    let workers = serve("[cluster]\nalone = true\n", "serve --worker w:1").workers;
    assert!(!workers.alone && workers.workers == ["w:1"], "{workers:?}");
    let clash = parsed("[cluster]\nalone = true\nworker = 'w:1'\n", "serve");
    assert!(clash.expect_err("both").starts_with("clap: "));
}

#[test]
fn a_commands_own_section_is_above_a_shared_one() {
    let text = "[cluster]\nalone = true\n[serve]\nalone = false\n";
    assert!(!serve(text, "serve").workers.alone);
    let Sub::Run { workers, prompt } = parsed(text, "run hello").expect("parsed").command else {
        panic!()
    };
    assert!(workers.alone && prompt == "hello");
}

#[test]
fn each_refusal_says_where_and_what_was_meant() {
    let refusal = |text: &str| parsed(text, "serve").expect_err("refused");
    for (text, expected) in [
        (
            "queue = 7",
            r#"/cake.toml:1: "queue" stands in no section: put it below one, such as [serve]"#,
        ),
        ("\n[srve]", "/cake.toml:2: there is no section [srve]; the nearest is [serve]"),
        ("[serve]\nqueu = 7", r#"/cake.toml:2: [serve] has no "queu"; the nearest is "queue""#),
        (
            "[serve]\n\nqueue = true",
            "/cake.toml:3: queue takes text or a number (N), not true or false (true)",
        ),
        ("[serve]\nqueue = [1]", "/cake.toml:2: queue takes text or a number (N), not a list"),
        (
            "[serve]\nqueue = 'x'",
            r#"/cake.toml:2: queue cannot be "x": invalid digit found in string"#,
        ),
        ("[cluster]\nalone = 1", "/cake.toml:2: alone takes true or false, not a number (1)"),
        (
            "[cluster]\nworker = [true]",
            "/cake.toml:2: worker takes a list of texts or numbers, not true or false (true)",
        ),
        (
            "[logs]\nverbose = 'no'",
            "/cake.toml:2: verbose takes how many times, 0 to 255, not text (\"no\")",
        ),
        (
            "[serve]\nqueue = 2024-01-01",
            "/cake.toml:2: queue takes text or a number (N), not a date",
        ),
        ("[run]\nqueue = 1", r#"/cake.toml:2: [run] has no "queue"; the nearest is "#),
    ] {
        let said = refusal(text);
        assert!(said.starts_with(expected), "{text:?}: {said}");
    }
    assert!(refusal("[serve]\nqueue 7").starts_with("/cake.toml:2: "));
    assert!(refusal("[serve]\nqueue = 1\nqueue = 2").starts_with("/cake.toml:3: "));
}

#[test]
fn what_only_programs_start_reads_no_file() {
    let Sub::Child { queue } = parsed("[nonsense]", "child").expect("parsed").command else {
        panic!()
    };
    assert_eq!(queue, None);
    let help = parsed("[nonsense]", "serve --help").expect_err("help");
    assert!(help.starts_with("clap: "), "{help}");
}

#[test]
fn a_program_that_knows_one_section_leaves_others_alone_but_for_slips() {
    let file = |text: &str| file::File::parse(Path::new("f"), text).expect("TOML");
    let mut command = Cli::command();
    command.build();
    let known = sections::sections(&PROGRAM, &command);
    let some = Program { others: true, ..PROGRAM };
    assert!(check::check(&some, &known, &file("[elsewhere]\na = 1")).is_ok());
    assert!(check::check(&some, &known, &file("[serv]\na = 1")).is_err());
}

#[test]
fn what_holds_is_told_with_where_it_comes_from() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cake.toml");
    std::fs::write(&path, "[serve]\nlisten = '1:2'\n[cluster]\nalone = true\n").expect("written");
    let told = |section| settings(&PROGRAM, Cli::command(), Some(&path), section);
    let all = text(&told(None).expect("told"));
    let name = path.display().to_string();
    for part in [
        "[serve]\n",
        "listen = \"1:2\"",
        &format!("# {name}:2"),
        "alone = true",
        &format!("# {name}:4"),
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    assert_eq!(all.matches("alone = true").count(), 1, "where it stands: {all}");
    let of_serve = text(&told(Some("serve")).expect("told"));
    for part in ["# queue", "# default: by the model", "listen = \"1:2\"", "alone = true"] {
        assert!(of_serve.contains(part), "{part}: {of_serve}");
    }
    assert!(told(Some("serf")).expect_err("none").to_string().contains("\"serve\""));
    std::fs::write(&path, "[child]\nqueue = 1").expect("written");
    assert!(told(None).is_ok(), "what other programs start may be set up for them");
}
