//! What a settings file says against what a program knows.

use clap::{Arg, ArgAction, Command};

use crate::Error;
use crate::file::{Entry, File, Value};
use crate::sections::{Known, Program};

/// Shown in place of what nobody is to read.
pub(crate) const HIDDEN: &str = "(not shown)";
/// Names that are less alike than this are not mistaken for each other.
const ALIKE: f64 = 0.8;

/// Refuses sections, keys and values that the program does not know.
pub(crate) fn check(program: &Program, known: &[Known<'_>], file: &File) -> Result<(), Error> {
    if let Some(Entry { key, at, .. }) = file.loose.first() {
        let example = known.first().map_or_else(String::new, |section| section.name.clone());
        return Err(Error::NoSection { at: at.clone(), key: key.clone(), example });
    }
    for section in &file.sections {
        let Some(is) = known.iter().find(|known| known.name == section.name) else {
            let names = known.iter().map(|known| known.name.as_str());
            let (nearest, alike) = nearest(&section.name, names);
            if program.others && alike < ALIKE {
                continue;
            }
            let found = section.name.clone();
            return Err(Error::UnknownSection { at: section.at.clone(), found, nearest });
        };
        for entry in &section.entries {
            let Some(arg) = is.args.iter().find(|arg| arg.get_long() == Some(&entry.key)) else {
                let names = is.args.iter().filter_map(|arg| arg.get_long());
                return Err(Error::UnknownKey {
                    at: entry.at.clone(),
                    section: section.name.clone(),
                    found: entry.key.clone(),
                    nearest: nearest(&entry.key, names).0,
                });
            };
            take(arg, entry)?;
        }
    }
    Ok(())
}

/// The refusal of a section that a person asked for by name.
pub(crate) fn unknown_section(found: &str, known: &[Known<'_>]) -> Error {
    let names = known.iter().map(|known| known.name.as_str());
    Error::NoSuchSection { found: found.to_owned(), nearest: nearest(found, names).0 }
}

/// How often an entry gives an option, each time with its value, if it has one; not at all if that leaves it out.
///
/// # Errors
/// [`Error::Type`] or [`Error::Value`].
pub(crate) fn take(arg: &Arg, entry: &Entry) -> Result<Vec<Option<String>>, Error> {
    let refused = |expected: &str, found: &Value| Error::Type {
        at: entry.at.clone(),
        key: entry.key.clone(),
        expected: expected.to_owned(),
        found: match found {
            Value::Other(_) | Value::List(_) => found.kind().to_owned(),
            value => format!("{} ({value})", found.kind()),
        },
    };
    let optional = arg.get_num_args().is_some_and(|values| values.min_values() == 0);
    match (arg.get_action(), &entry.value) {
        (ArgAction::SetTrue, Value::Switch(on)) => Ok(on.then_some(None).into_iter().collect()),
        (ArgAction::SetTrue, other) => Err(refused("true or false", other)),
        (ArgAction::Count, Value::Number(number)) => match number.parse::<u8>() {
            Ok(times) => Ok(vec![None; usize::from(times)]),
            Err(_) => Err(refused("how many times, 0 to 255", &entry.value)),
        },
        (ArgAction::Count, other) => Err(refused("how many times, 0 to 255", other)),
        (ArgAction::Append, Value::List(values)) => values
            .iter()
            .map(|value| one(arg, entry, value).ok_or(value))
            .try_fold(Vec::new(), |mut all, value| match value {
                Ok(value) => {
                    all.push(Some(value?));
                    Ok(all)
                }
                Err(value) => Err(refused("a list of texts or numbers", value)),
            }),
        (ArgAction::Append, value) => match one(arg, entry, value) {
            Some(value) => Ok(vec![Some(value?)]),
            None => Err(refused("text, or a list of texts", value)),
        },
        (_, Value::Switch(on)) if optional => Ok(on.then_some(None).into_iter().collect()),
        (_, value) => match one(arg, entry, value) {
            Some(value) => Ok(vec![Some(value?)]),
            None => Err(refused(&expected(arg), value)),
        },
    }
}

/// What an option takes, in words.
fn expected(arg: &Arg) -> String {
    let name = arg.get_value_names().and_then(|names| names.first());
    name.map_or_else(|| "text or a number".to_owned(), |name| format!("text or a number ({name})"))
}

/// A single value that the option takes; none where it has the wrong type.
fn one(arg: &Arg, entry: &Entry, value: &Value) -> Option<Result<String, Error>> {
    let (Value::Number(text) | Value::Text(text)) = value else { return None };
    // The option alone, so that nothing else can be wrong with it.
    let alone = Arg::new("it").long("it").value_parser(arg.get_value_parser().clone());
    let parsed =
        Command::new("it").arg(alone).try_get_matches_from(["it", &format!("--it={text}")]);
    Some(parsed.map(|_| text.clone()).map_err(|error| Error::Value {
        at: entry.at.clone(),
        key: entry.key.clone(),
        found: if arg.is_hide_env_values_set() { HIDDEN.to_owned() } else { text.clone() },
        reason: match arg.is_hide_env_values_set() {
            true => "it is mistyped".to_owned(), // What is wrong with it may have parts of it.
            false => reason(&error),
        },
    }))
}

/// The end of `clap`'s first sentence, or what the values are.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let end = first.split_once(">': ").map(|(_, end)| end);
    let values =
        || lines.find(|line| line.starts_with('[')).map(|line| line.trim_matches(['[', ']']));
    end.or_else(values).unwrap_or(first).to_owned()
}

/// The name that is most like one that is not known, and how much.
fn nearest<'a>(found: &str, names: impl Iterator<Item = &'a str>) -> (String, f64) {
    let alike = names.map(|name| (name, strsim::jaro_winkler(found, name)));
    let best = alike.max_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or((String::new(), 0.0), |(name, alike)| (name.to_owned(), alike))
}
