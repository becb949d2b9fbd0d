//! `cake-master`: parse arguments, start logging, run, leave with a plain sentence.
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    match cake_master::cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "cake-master: {error}").ok(); // Read by nobody, perhaps.
            error.exit_code()
        }
    }
}
