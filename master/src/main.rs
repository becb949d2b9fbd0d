//! `cake-master`: parse arguments, run, leave with an exit code.
use std::process::ExitCode;

use cake_master::cli::{Cli, SETTINGS};

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

fn main() -> ExitCode {
    cake_settings::parse::<Cli>(&SETTINGS).run()
}
