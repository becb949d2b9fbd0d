//! `cake-master`: parse arguments, start logging, run, leave with a plain sentence.
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    let cli = cake_master::cli::Cli::parse();
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    let filter = EnvFilter::try_from_env("CAKE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "cake-master: {error}").ok(); // Read by nobody, perhaps.
            error.exit_code()
        }
    }
}
