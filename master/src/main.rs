//! `cake-master`: parse arguments, run, leave with an exit code.
use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    cake_master::cli::Cli::parse().run()
}
