//! Programs that people already use, against the service.
use std::path::{Path, PathBuf};
use std::process::Command;

use cake_tests::{Master, Server, TestWorker, not_shown};

/// A Python with this package: `CAKE_CLIENTS_PYTHON`, else what `tests/clients/install.sh` made.
fn python(package: &str) -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/venv/bin/python");
    let python = std::env::var_os("CAKE_CLIENTS_PYTHON").map_or(made, PathBuf::from);
    let imports = Command::new(&python).args(["-c", &format!("import {package}")]).output();
    imports.is_ok_and(|output| output.status.success()).then_some(python)
}

/// Has the script of a client, which needs this package, make so many checks of the demo model over two workers.
fn finds_what_it_expects(script: &str, package: &str, checks: usize) {
    let Some(python) = python(package) else {
        let how = "tests/clients/install.sh gets it";
        return not_shown(format!("no Python with the package {package}: {how}"));
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../master/demo-model");
    let workers = TestWorker::several(&["a", "b"]);
    let place = ["--place", "a=0..6", "--place", "b=6..12", "--model-name", "demo"];
    let server = Server::start(&Master::over(&workers), &model, &place);
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let script = clients.join(script);
    let output = Command::new(python).arg(script).args([&server.url, "demo"]).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains(&format!("{checks} checks passed")), "{said}");
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
