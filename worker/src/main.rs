//! `cake-worker`: parse arguments, start logging, run, leave with a plain sentence.
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("CAKE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match cake_worker::cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cake-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
