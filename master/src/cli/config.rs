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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::cli::{Cli, SETTINGS};

    #[test]
    fn every_shared_section_is_of_a_group_that_there_is() {
        let file = tempfile::NamedTempFile::new().expect("an empty file");
        for (section, key) in
            [("cluster", "worker"), ("planning", "kv"), ("answers", "top-p"), ("service", "at")]
        {
            assert!(SETTINGS.shared.iter().any(|(name, _)| *name == section), "{section}");
            let told = cake_settings::settings(
                &SETTINGS,
                Cli::command(),
                Some(file.path()),
                Some(section),
            );
            let told = told.expect("there is such a section");
            assert!(told.iter().any(|setting| setting.key == key), "{section}: {told:?}");
        }
        assert_eq!(SETTINGS.shared.len(), 4);
    }
}
