//! Settings files: what `cake.toml` says becomes arguments beneath those of the command line.
//!
//! Start at [`parse()`]. There is no second list of settings: sections and keys are what a program's own `clap` definition
//! has (`sections`), each key the long name of an option. Where the file is, is said in `places`; `file` reads it,
//! `check` refuses what the program does not know, `beneath` chooses what holds for one command line, and `shown` tells
//! people what does.
//!
//! Invariants:
//! - The command line is above the environment, as far as `clap` reads it, that above the file, and that above defaults.
//! - Every section that the program knows is checked, also where the command has no use for it.
//! - A command that only other programs start reads no file.

mod beneath;
mod check;
mod error;
mod file;
mod places;
mod sections;
mod shown;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

pub use error::Error;
pub use sections::Program;
pub use shown::{Origin, Setting, settings, text};

/// Where settings are read from; part of each program's arguments.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct ConfigArgs {
    /// A file of settings (TOML): what it says holds where neither an argument nor the environment says otherwise.
    /// Default: what CAKE_CONFIG names, else cake.toml in CAKE_STATE if that is set, else cake/cake.toml in the user's
    /// configuration directory, if it is there. An empty CAKE_CONFIG is for none.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Settings")]
    pub config: Option<PathBuf>,
}

/// The program's arguments: those of its command line, over what the settings file says. Where they cannot be used it
/// says why and ends the process, as `clap` does.
pub fn parse<C: Parser>(program: &Program) -> C {
    match try_parse(program, std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(Refusal::Settings(error)) => {
            eprintln!("{}: {error}", program.name);
            std::process::exit(USAGE)
        }
        Err(Refusal::Arguments { error, file }) => {
            if error.use_stderr()
                && let Some(file) = file
            {
                eprintln!("{}: with settings of {}", program.name, file.display());
            }
            error.exit()
        }
    }
}

/// Exit code of arguments that cannot be used, as `clap` has it.
const USAGE: i32 = 2;

/// Why there are no arguments.
#[derive(Debug)]
enum Refusal {
    Settings(Error),
    /// What `clap` says; `file` if some of them are from there.
    Arguments {
        error: clap::Error,
        file: Option<PathBuf>,
    },
}

fn try_parse<C: Parser>(program: &Program, mut args: Vec<OsString>) -> Result<C, Refusal> {
    let mut command = C::command();
    command.build();
    let mut file = None;
    if let Some(typed) = beneath::typed(&command, &args) {
        let place = places::place(typed.config.as_deref()).map_err(Refusal::Settings)?;
        if let Some(place) = place {
            let read = file::File::read(&place).map_err(Refusal::Settings)?;
            let known = sections::sections(program, &command);
            check::check(program, &known, &read).map_err(Refusal::Settings)?;
            let more = beneath::arguments(program, &typed, &read).map_err(Refusal::Settings)?;
            file = (!more.is_empty()).then_some(place);
            // Behind two dashes nothing is an option any more.
            let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
            args.splice(end..end, more);
        }
    }
    let parsed = command.try_get_matches_from_mut(args);
    let parsed = parsed.and_then(|matches| C::from_arg_matches(&matches));
    let parsed = parsed.map_err(|error| error.format(&mut command));
    parsed.map_err(|error| Refusal::Arguments { error, file })
}

#[cfg(test)]
mod tests;
