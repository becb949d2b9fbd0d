//! `cake-worker`: parse arguments, start logging, run, leave with a plain sentence.
use std::process::ExitCode;

use cake_worker::cli::{Cli, SETTINGS};

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    match cake_settings::parse::<Cli>(&SETTINGS).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cake-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
