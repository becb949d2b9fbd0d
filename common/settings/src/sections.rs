//! The sections that a program's own definition of arguments has.

use clap::{Arg, Command};

/// How a program's arguments become sections.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// As it is called.
    pub name: &'static str,
    /// The section of its arguments, where it has few commands; else each command has a section of its name.
    pub own: Option<&'static str>,
    /// Sections for whatever command has these arguments, and the group that `clap` makes of them.
    pub shared: &'static [(&'static str, &'static str)],
    /// Whether sections of other programs may stand in the file, which are not looked at.
    pub others: bool,
}

/// The section of arguments that every command has.
pub(crate) const LOGS: &str = "logs";

/// One section: its name, and the options whose long names are its keys.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) name: String,
    pub(crate) args: Vec<&'a Arg>,
}

impl Program {
    /// The section of the command with this path, the program's own if that is empty.
    pub(crate) fn section<'a>(&self, path: &[&'a str]) -> Option<&'a str>
    where
        'static: 'a,
    {
        // Of what every command has: a command of that name has no section.
        self.own.or_else(|| path.first().copied().filter(|name| *name != LOGS))
    }

    /// Sections that an option of a command is read from, the first that has it counts.
    pub(crate) fn sections_of<'a>(
        &self,
        path: &[&'a str],
        leaf: &Command,
        arg: &Arg,
    ) -> Vec<&'a str>
    where
        'static: 'a,
    {
        if arg.is_global_set() {
            return vec![LOGS];
        }
        let in_group = |group: &str| {
            let mut groups = leaf.get_groups();
            groups.any(|it| it.get_id() == group && it.get_args().any(|id| id == arg.get_id()))
        };
        let shared = self.shared.iter().filter(|(_, group)| in_group(group));
        self.section(path).into_iter().chain(shared.map(|(name, _)| *name)).collect()
    }
}

/// Every section of `command`, which has to be built, in the order of the help.
pub(crate) fn sections<'a>(program: &Program, command: &'a Command) -> Vec<Known<'a>> {
    let mut known: Vec<Known<'_>> = Vec::new();
    let logs = Known { name: LOGS.to_owned(), args: Vec::new() };
    let all = commands(command).into_iter();
    // Its commands read what they have of the program's own arguments, and add none.
    for (path, leaf) in all.filter(|(path, _)| program.own.is_none() || path.is_empty()) {
        for arg in leaf.get_arguments().filter(|arg| is_setting(arg) && !arg.is_global_set()) {
            for name in program.sections_of(&path, leaf, arg) {
                add(&mut known, name, arg);
            }
        }
    }
    known.push(logs);
    for arg in command.get_arguments().filter(|arg| is_setting(arg) && arg.is_global_set()) {
        add(&mut known, LOGS, arg);
    }
    known.retain(|section| !section.args.is_empty());
    known
}

fn add<'a>(known: &mut Vec<Known<'a>>, name: &str, arg: &'a Arg) {
    let section = match known.iter_mut().position(|section| section.name == name) {
        Some(at) => &mut known[at],
        None => {
            known.push(Known { name: name.to_owned(), args: Vec::new() });
            known.last_mut().expect("one was pushed")
        }
    };
    if !section.args.iter().any(|known| known.get_long() == arg.get_long()) {
        section.args.push(arg);
    }
}

/// A command and all below it, each with its path from there.
pub(crate) fn commands(command: &Command) -> Vec<(Vec<&str>, &Command)> {
    let mut all = vec![(Vec::new(), command)];
    let mut next = 0;
    while let Some((path, command)) = all.get(next).cloned() {
        let below = command.get_subcommands().filter(|sub| sub.get_name() != "help");
        all.extend(below.map(|sub| ([path.as_slice(), &[sub.get_name()]].concat(), sub)));
        next += 1;
    }
    all
}

/// Whether a file may say it: what an option is for people, but for those about the file itself or about help.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    let apart = ["help", "version", "config"];
    arg.get_long().is_some_and(|long| !apart.contains(&long)) && !arg.is_hide_set()
}
