//! `cake-master config`: what the settings file says, and what holds where it says nothing.
use std::path::Path;

use cake_settings::Program;
use clap::Command;

use super::{Error, out, report};

/// Arguments of `config`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct Args {
    /// All settings of this section, such as serve, cluster or worker; without it, those that the file or the environment
    /// gives.
    section: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// Prints what holds for commands of `program` that say nothing else, and where each value comes from.
    pub(super) fn run(
        self,
        program: &Program,
        command: Command,
        config: Option<&Path>,
    ) -> Result<(), Error> {
        let section = self.section.as_deref();
        let settings = cake_settings::settings(program, command, config, section)?;
        match self.json {
            true => report::print_json(&settings),
            false => out::text(cake_settings::text(&settings)),
        }
    }
}
