//! Programs that people already use, against the service.
use std::path::{Path, PathBuf};
use std::process::Command;

use cake_tests::{Master, Server, TestWorker, not_shown};

/// A Python with the package `openai`: `CAKE_OPENAI_PYTHON`, else what `tests/clients/install.sh` made.
fn python() -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/venv/bin/python");
    let python = std::env::var_os("CAKE_OPENAI_PYTHON").map_or(made, PathBuf::from);
    let imports = Command::new(&python).args(["-c", "import openai"]).output();
    imports.is_ok_and(|output| output.status.success()).then_some(python)
}

#[test]
fn the_openai_client_for_python_finds_everything_it_expects() {
    let Some(python) = python() else {
        return not_shown("no Python with the package openai: tests/clients/install.sh gets it");
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../master/demo-model");
    let workers = TestWorker::several(&["a", "b"]);
    let place = ["--place", "a=0..6", "--place", "b=6..12", "--model-name", "demo"];
    let server = Server::start(&Master::over(&workers), &model, &place);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/openai_client.py");
    let output = Command::new(python).arg(script).args([&server.url, "demo"]).output();
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("9 checks passed"), "{said}");
}
