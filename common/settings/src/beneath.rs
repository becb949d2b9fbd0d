//! What a settings file says for one command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::Error;
use crate::check::take;
use crate::file::{Entry, File};
use crate::sections::{Program, is_setting};

/// What was typed, as far as it can be understood.
pub(crate) struct Typed<'a> {
    path: Vec<&'a str>,
    leaf: &'a Command,
    matches: ArgMatches,
    pub(crate) config: Option<PathBuf>,
}

/// Understands a command line of `command`, which has to be built; none where no settings are needed: for help, and for commands that programs start.
pub(crate) fn typed<'a>(command: &'a Command, args: &[OsString]) -> Option<Typed<'a>> {
    let patient = command.clone().ignore_errors(true);
    let mut matches = patient.try_get_matches_from(args).ok()?;
    let (mut path, mut leaf) = (Vec::new(), command);
    while let Some((name, below)) = matches.remove_subcommand() {
        leaf = leaf.find_subcommand(&name)?;
        if leaf.is_hide_set() {
            return None;
        }
        path.push(leaf.get_name());
        matches = below;
    }
    // A global option is known to the last command, wherever it stands.
    let config = matches.try_get_one::<PathBuf>("config").ok()?.cloned();
    Some(Typed { path, leaf, matches, config })
}

impl Typed<'_> {
    /// Whether the command line or the environment says it.
    fn is_said(&self, arg: &Arg) -> bool {
        let known = self.matches.try_contains_id(arg.get_id().as_str()).is_ok();
        let source = || self.matches.value_source(arg.get_id().as_str());
        (known && source() == Some(ValueSource::CommandLine))
            || arg.get_env().is_some_and(|name| std::env::var_os(name).is_some())
    }

    /// Whether it, or what excludes it, is said above the file.
    fn is_above(&self, arg: &Arg) -> bool {
        let excludes = |one: &Arg, other: &Arg| {
            let excluded = self.leaf.get_arg_conflicts_with(one);
            excluded.iter().any(|arg| arg.get_id() == other.get_id())
        };
        let mut said = self.leaf.get_arguments().filter(|other| self.is_said(other));
        said.any(|other| {
            other.get_id() == arg.get_id() || excludes(arg, other) || excludes(other, arg)
        })
    }
}

/// The entry that holds for an option of the command with this path, if any does.
pub(crate) fn entry<'f>(
    program: &Program,
    path: &[&str],
    leaf: &Command,
    arg: &Arg,
    file: &'f File,
) -> Option<&'f Entry> {
    let sections = program.sections_of(path, leaf, arg);
    sections.into_iter().find_map(|section| file.entry(section, arg))
}

/// The arguments that a file gives where nothing above it says otherwise.
///
/// # Errors
/// As [`take()`].
pub(crate) fn arguments(
    program: &Program,
    typed: &Typed<'_>,
    file: &File,
) -> Result<Vec<OsString>, Error> {
    let mut arguments = Vec::new();
    for arg in typed.leaf.get_arguments().filter(|arg| is_setting(arg)) {
        let Some(long) = arg.get_long() else { continue };
        let Some(entry) = entry(program, &typed.path, typed.leaf, arg, file) else { continue };
        if typed.is_above(arg) {
            continue;
        }
        let word = |value: Option<String>| match value {
            None => format!("--{long}"),
            Some(value) => format!("--{long}={value}"),
        };
        arguments.extend(take(arg, entry)?.into_iter().map(word).map(OsString::from));
    }
    Ok(arguments)
}
