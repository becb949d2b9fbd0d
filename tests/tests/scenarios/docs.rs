//! What `docs/` says of commands and of paths is what the programs say.

use std::path::PathBuf;

use cake_tests::reference;
use clap::CommandFactory;

/// Writes pages anew instead of comparing them.
const RECORD: &str = "CAKE_RECORD";

#[test]
fn the_reference_is_what_the_programs_take() {
    holds("cake-master", &reference::page(cake_master::cli::Cli::command()));
    holds("cake-worker", &reference::page(cake_worker::cli::Cli::command()));
}

#[test]
fn the_reference_has_every_path_as_the_program_describes_it() {
    holds("api", &reference::api::page(&cake_master::api::description()));
}

/// Looks whether the page of this name is this one.
#[track_caller]
fn holds(name: &str, page: &str) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/reference"));
    let path = folder.join(format!("{name}.md"));
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(&path, page).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let other = written.lines().zip(page.lines()).position(|(one, other)| one != other);
    let fix = "CAKE_RECORD=1 cargo test -p cake-tests --test scenarios docs:: writes it anew";
    assert!(written == page, "{path:?} differs in line {:?}: {fix}", other.map(|at| at + 1));
}
