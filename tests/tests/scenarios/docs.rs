//! What `docs/` says of commands is what the programs say.

use std::path::PathBuf;

use cake_tests::reference::page;
use clap::CommandFactory;

/// Writes pages anew instead of comparing them.
const RECORD: &str = "CAKE_RECORD";

#[test]
fn the_reference_is_what_the_programs_take() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/reference"));
    for (name, command) in [
        ("cake-master", cake_master::cli::Cli::command()),
        ("cake-worker", cake_worker::cli::Cli::command()),
    ] {
        let (path, page) = (folder.join(format!("{name}.md")), page(command));
        if std::env::var_os(RECORD).is_some() {
            std::fs::write(&path, &page).expect("written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let other = written.lines().zip(page.lines()).position(|(one, other)| one != other);
        let fix = "CAKE_RECORD=1 cargo test -p cake-tests --test scenarios docs:: writes it anew";
        assert!(written == page, "{path:?} differs in line {:?}: {fix}", other.map(|at| at + 1));
    }
}
