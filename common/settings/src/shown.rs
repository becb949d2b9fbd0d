//! What holds, and where it comes from, for people and programs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use serde::Serialize;

use crate::check::HIDDEN;
use crate::file::{Entry, File};
use crate::sections::{Known, Program, commands};
use crate::{Error, beneath, check, places, sections};

/// One setting of a section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its section.
    pub section: String,
    /// The long name of the option.
    pub key: String,
    /// What holds, as TOML has it; none where the program finds out by itself.
    pub value: Option<String>,
    /// Where that comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This variable.
    Environment(String),
    /// This line of the file, from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// Nobody says otherwise; what then holds, in words, where it is no plain value.
    Default(Option<String>),
}

/// What holds for commands that say nothing else, section by section: of `section`, or of all that are not as they
/// always are.
///
/// # Errors
/// The file cannot be used, or there is no such section.
pub fn settings(
    program: &Program,
    mut command: Command,
    config: Option<&Path>,
    section: Option<&str>,
) -> Result<Vec<Setting>, Error> {
    command.build();
    let known = sections::sections(program, &command);
    let place = places::place(config)?;
    let file = match &place {
        Some(place) => File::read(place)?,
        None => File { sections: Vec::new(), loose: Vec::new() },
    };
    check::check(program, &known, &file)?;
    let leaves = commands(&command);
    let mut settings = Vec::new();
    let all = known;
    for known in all.iter().filter(|known| section.is_none_or(|name| known.name == name)) {
        for arg in &known.args {
            // Of all, each where it stands: once.
            let entry = match section {
                Some(_) => entry(program, &leaves, &known.name, arg, &file),
                None => file.entry(&known.name, arg),
            };
            let (value, origin) = holds(arg, entry);
            let is_elsewhere = matches!(origin, Origin::Default(_))
                || matches!(origin, Origin::Environment(_)) && is_shared(program, known, arg, &all);
            if section.is_none() && is_elsewhere {
                continue;
            }
            let key = arg.get_long().unwrap_or_default().to_owned();
            settings.push(Setting { section: known.name.clone(), key, value, origin });
        }
    }
    if let (Some(name), true) = (section, settings.is_empty()) {
        return Err(check::unknown_section(name, &all));
    }
    Ok(settings)
}

/// Whether another section, which is for several commands, has the option, too.
fn is_shared(program: &Program, known: &Known<'_>, arg: &Arg, all: &[Known<'_>]) -> bool {
    let is_for_several = |name: &str| program.shared.iter().any(|(shared, _)| *shared == name);
    let has = |other: &&Known<'_>| other.args.iter().any(|it| it.get_long() == arg.get_long());
    let shared = all.iter().filter(|other| is_for_several(&other.name)).find(has);
    shared.is_some_and(|shared| shared.name != known.name)
}

/// What the file says of an option for the commands of a section.
fn entry<'f>(
    program: &Program,
    leaves: &[(Vec<&str>, &Command)],
    section: &str,
    arg: &Arg,
    file: &'f File,
) -> Option<&'f Entry> {
    // The command whose section it is: there the shared sections count, too.
    let leaf = leaves.iter().find(|(path, leaf)| {
        let own = program.section(path) == Some(section) && !arg.is_global_set();
        own && leaf.get_arguments().any(|it| it.get_long() == arg.get_long())
    });
    match leaf {
        Some((path, leaf)) => beneath::entry(program, path, leaf, arg, file),
        None => file.entry(section, arg),
    }
}

/// What holds, with where it comes from.
fn holds(arg: &Arg, entry: Option<&Entry>) -> (Option<String>, Origin) {
    let variable = arg
        .get_env()
        .and_then(|name| Some((name.to_string_lossy().into_owned(), std::env::var_os(name)?)));
    let (value, origin) = match (variable, entry) {
        (Some((name, value)), _) => {
            (format!("{:?}", value.to_string_lossy()), Origin::Environment(name))
        }
        (None, Some(entry)) => {
            let (path, line) = (entry.at.path.clone(), entry.at.line);
            (entry.value.to_string(), Origin::File { path, line })
        }
        (None, None) => return default(arg),
    };
    let value = if arg.is_hide_env_values_set() { format!("{HIDDEN:?}") } else { value };
    (Some(value), origin)
}

/// What holds without anybody saying so.
fn default(arg: &Arg) -> (Option<String>, Origin) {
    let values: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| {
            let value = value.to_string_lossy();
            match value.parse::<f64>().is_ok() || ["true", "false"].contains(&value.as_ref()) {
                true => value.into_owned(),
                false => format!("{value:?}"),
            }
        })
        .collect();
    match values.as_slice() {
        [] => {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let words = help.split_once("Default: ").map(|(_, words)| words.trim_end_matches('.'));
            (None, Origin::Default(words.map(|words| words.replace('\n', " "))))
        }
        [one] => (Some(one.clone()), Origin::Default(None)),
        several => (Some(format!("[{}]", several.join(", "))), Origin::Default(None)),
    }
}

/// Settings as a file that says the same, with where each comes from behind it.
pub fn text(settings: &[Setting]) -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in settings {
        if setting.section != section {
            let between = if section.is_empty() { "" } else { "\n" };
            writeln!(text, "{between}[{}]", setting.section).expect("a string takes it");
            section = &setting.section;
        }
        let origin = match &setting.origin {
            Origin::Environment(name) => name.clone(),
            Origin::File { path, line } => format!("{}:{line}", path.display()),
            Origin::Default(None) => "default".to_owned(),
            Origin::Default(Some(words)) => format!("default: {words}"),
        };
        let line = match &setting.value {
            Some(value) => format!("{} = {value}", setting.key),
            None => format!("# {}", setting.key),
        };
        writeln!(text, "{line:<32} # {origin}").expect("a string takes it");
    }
    text
}
