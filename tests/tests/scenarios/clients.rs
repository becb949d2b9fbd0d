//! Programs that people already use, against the service.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cake_tests::{Cluster, Master, Server, TestWorker, demo_model, not_shown, not_shown_of};

use crate::reasoning::brief_thinker;

/// A client: its script, what runs it, and how many checks of the demo model it makes.
struct Client {
    script: &'static str,
    program: &'static str,
    checks: usize,
}

/// What holds answers to their description.
const OPENAPI: &str = "openapi_client.py";
/// Clients in environments of their own, as far as packages do not agree on one.
const APART: [Client; 9] = [
    Client { script: "litellm_client.py", program: "envs/litellm/bin/python", checks: 6 },
    Client { script: "langchain_client.py", program: "envs/langchain/bin/python", checks: 6 },
    Client { script: "llama_index_client.py", program: "envs/llama-index/bin/python", checks: 5 },
    Client { script: "instructor_client.py", program: "envs/instructor/bin/python", checks: 4 },
    Client { script: "llm_client.py", program: "envs/llm/bin/python", checks: 4 },
    Client { script: "lm_eval_client.py", program: "envs/lm-eval/bin/python", checks: 2 },
    Client { script: "openai_client.mjs", program: "envs/node/bin/node", checks: 8 },
    Client { script: OPENAPI, program: "envs/schemathesis/bin/python", checks: 7 },
    Client { script: "ai_client.mjs", program: "envs/node/bin/node", checks: 6 },
];

impl Client {
    /// Whether all of it is there: what `install.sh` writes last.
    fn is_there(&self) -> bool {
        let made = match self.script.ends_with(".mjs") {
            true => Path::new("node_modules"),
            false => Path::new(self.program).ancestors().nth(2).expect("envs/NAME/bin/PROGRAM"),
        };
        let made = clients().join(made).join("made-of");
        clients().join(self.program).exists() && made.exists()
    }
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// The demo model over two workers.
fn demo() -> (Vec<TestWorker>, Server) {
    let workers = TestWorker::several(&["a", "b"]);
    let place = ["--place", "a=0..6", "--place", "b=6..12", "--model-name", "demo"];
    let server = Server::start(&Master::over(&workers), &demo_model(), &place);
    (workers, server)
}

/// A client's script at work, with what it says caught.
fn begun(program: &Path, script: &str, server: &Server) -> Child {
    let mut command = Command::new(program);
    command.arg(clients().join(script)).args([&server.url, "demo"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Looks whether the script of a client made so many checks, none of which failed.
fn found_what_it_expects(script: &str, child: Child, checks: usize) {
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}{errors}");
    assert!(said.contains(&format!("{checks} checks passed")), "{script}: {said}");
}

/// A Python with this package: `CAKE_CLIENTS_PYTHON`, else what `tests/clients/install.sh` made.
fn python(package: &str) -> Option<PathBuf> {
    let made = clients().join("venv/bin/python");
    let python = std::env::var_os("CAKE_CLIENTS_PYTHON").map_or(made, PathBuf::from);
    let imports = Command::new(&python).args(["-c", &format!("import {package}")]).output();
    imports.is_ok_and(|output| output.status.success()).then_some(python)
}

/// Has the script of a client, which needs this package, make so many checks.
fn finds_what_it_expects(script: &str, package: &str, checks: usize) {
    let Some(python) = python(package) else {
        let how = "tests/clients/install.sh gets it";
        return not_shown(format!("no Python with the package {package}: {how}"));
    };
    let (_workers, server) = demo();
    found_what_it_expects(script, begun(&python, script, &server), checks);
}

#[test]
fn the_openai_client_for_python_finds_everything_it_expects() {
    finds_what_it_expects("openai_client.py", "openai", 12);
}

#[test]
fn the_openai_client_for_python_goes_on_from_its_responses() {
    finds_what_it_expects("responses_client.py", "openai", 9);
}

#[test]
fn agents_of_openais_sdk_answer_and_call_tools() {
    finds_what_it_expects("agents_client.py", "agents", 3);
}

#[test]
fn the_anthropic_client_for_python_finds_everything_it_expects() {
    finds_what_it_expects("anthropic_client.py", "anthropic", 9);
}

#[test]
fn the_ollama_client_for_python_finds_everything_it_expects() {
    finds_what_it_expects("ollama_client.py", "ollama", 11);
}

#[test]
fn clients_of_three_apis_tell_thoughts_from_answers() {
    // All three are of one environment.
    let Some(python) =
        ["openai", "anthropic", "ollama"].map(python).into_iter().collect::<Option<Vec<_>>>()
    else {
        return not_shown(
            "no Python with the clients of three APIs: tests/clients/install.sh gets it",
        );
    };
    let model = brief_thinker();
    let server = Server::start(&Master::alone(), model.path(), &["--model-name", "demo"]);
    found_what_it_expects(
        "thinking_client.py",
        begun(&python[0], "thinking_client.py", &server),
        4,
    );
}

#[test]
fn clients_of_one_server_side_by_side_find_everything_they_expect() {
    let (_workers, server) = demo();
    let (there, missing): (Vec<&Client>, Vec<&Client>) =
        APART.iter().partition(|client| client.is_there());
    for Client { script, program, .. } in missing {
        let why = format!("no {program}: tests/clients/install.sh gets it");
        not_shown_of(&format!("clients::{script}"), why);
    }
    // All begin before the first is waited for.
    let begun: Vec<(&Client, Child)> = there
        .into_iter()
        .map(|client| (client, begun(&clients().join(client.program), client.script, &server)))
        .collect();
    for (client, child) in begun {
        found_what_it_expects(client.script, child, client.checks);
    }
}

#[test]
fn what_an_owner_is_answered_is_as_the_service_describes_it() {
    let client = APART.iter().find(|client| client.script == OPENAPI).expect("it is of them");
    if !client.is_there() {
        return not_shown(format!("no {}: tests/clients/install.sh gets it", client.program));
    }
    let cluster = Cluster::new(&["kitchen", "attic"]);
    let server = Server::start(&cluster.master, &demo_model(), &["--model-name", "demo"]);
    let child = begun(&clients().join(client.program), client.script, &server);
    found_what_it_expects(client.script, child, client.checks);
    let revoked = cluster.list().iter().filter(|worker| worker["revoked"] == true).count();
    assert_eq!(revoked, 1, "what is only done where there is an authority was done");
}

#[test]
fn answers_are_as_the_service_describes_them() {
    if !clients().join("envs/schemathesis/made-of").exists() {
        return not_shown("no schemathesis: tests/clients/install.sh gets it");
    }
    let (_workers, server) = demo();
    let mut command = Command::new("bash");
    command.arg(clients().join("schemathesis.sh")).args([&server.url, "0"]);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let counted = said.lines().find_map(|line| line.trim().split_once(" generated, "));
    let asked: usize = counted.and_then(|(asked, _)| asked.parse().ok()).expect("a count");
    println!("it asked {asked} times");
    assert!(asked > 2_000, "{said}");
}
