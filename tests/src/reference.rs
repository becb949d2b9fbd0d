//! The reference of commands in `docs/`: what the programs' own definitions of arguments say, as Markdown. That of paths is in
//! `api`.

pub mod api;

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

/// A page about a program and all of its commands that people see.
pub fn page(mut command: Command) -> String {
    command = command.term_width(100);
    command.build();
    let name = command.get_name().to_owned();
    let mut page = format!(
        "# {name}\n\n<!-- Made from the program's arguments: see CONTRIBUTING.md, \"A command\". -->\n\n"
    );
    add(&mut page, &command, &name, true);
    each_below(&mut page, &command, &name);
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    page
}

fn each_below(page: &mut String, command: &Command, path: &str) {
    let below = command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
    for command in below {
        let path = format!("{path} {}", command.get_name());
        add(page, command, &path, false);
        each_below(page, command, &path);
    }
}

/// A command's own part; its global arguments only if it is the first.
fn add(page: &mut String, command: &Command, path: &str, first: bool) {
    if !first {
        writeln!(page, "## {path}\n").expect("a string takes it");
    }
    writeln!(page, "{}\n", text(command.get_about())).expect("a string takes it");
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    writeln!(page, "```\n{}\n```\n", lines.join("\n")).expect("a string takes it");
    let mut heading = None;
    let own = command.get_arguments().filter(|arg| shown(arg) && (first || !arg.is_global_set()));
    // Those of one group stand together, in the order in which groups begin.
    let mut args: Vec<&Arg> = own.collect();
    let headings: Vec<Option<&str>> = args.iter().map(|arg| arg.get_help_heading()).collect();
    args.sort_by_key(|arg| {
        let of = arg.get_help_heading().filter(|_| !arg.is_positional());
        headings.iter().position(|it| *it == of).filter(|_| of.is_some()).map_or(0, |at| at + 1)
    });
    for arg in args {
        let of = arg.get_help_heading().filter(|_| !arg.is_positional());
        if of != heading {
            writeln!(page, "\n**{}**\n", of.unwrap_or("Others")).expect("a string takes it");
            heading = of;
        }
        writeln!(page, "- {}", item(arg)).expect("a string takes it");
    }
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((_, examples)) = examples.split_once("Examples:\n") {
        let lines: Vec<&str> =
            examples.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
        let (typed, said) =
            lines.split_at(lines.iter().position(|line| line.is_empty()).unwrap_or(lines.len()));
        writeln!(page, "\n```\n{}\n```\n", typed.join("\n")).expect("a string takes it");
        let said = said.join("\n");
        if !said.trim().is_empty() {
            writeln!(page, "{}\n", said.trim()).expect("a string takes it");
        }
    }
}

/// An argument in a line.
fn item(arg: &Arg) -> String {
    let value = arg.get_value_names().unwrap_or_default().iter().map(|name| format!(" <{name}>"));
    let value: String = match takes_value(arg) {
        true => value.collect(),
        false => String::new(),
    };
    let name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}`, `--{long}{value}`"),
        (None, Some(long)) => format!("`--{long}{value}`"),
        _ => format!("`{}`", value.trim()),
    };
    let mut line = format!("{name}: {}", text(arg.get_help()));
    let defaults = arg.get_default_values().iter().map(|it| it.to_string_lossy());
    let defaults: Vec<_> = defaults.filter(|it| !it.is_empty()).collect();
    if takes_value(arg) && !defaults.is_empty() {
        write!(line, " Default: `{}`.", defaults.join("`, `")).expect("a string takes it");
    }
    if let Some(variable) = arg.get_env() {
        write!(line, " Environment: `{}`.", variable.to_string_lossy()).expect("a string takes it");
    }
    line
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// Help as sentences; what is no markup in it must be none here.
fn text(help: Option<&StyledStr>) -> String {
    let text = help.map(ToString::to_string).unwrap_or_default().replace('<', "\\<");
    match text.is_empty() || text.ends_with(['.', '?', '!']) {
        true => text,
        false => text + ".",
    }
}
