//! `cake-worker`: parse arguments, start logging, run, leave with a plain sentence.
use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    match cake_worker::cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cake-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
