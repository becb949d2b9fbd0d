//! Where the settings file is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::Error;

/// Variable that names the file; empty for none.
const FILE: &str = "CAKE_CONFIG";
/// Variable with the state directory of a master, where its settings then are, too.
const STATE: &str = "CAKE_STATE";
const NAME: &str = "cake.toml";

/// The file that is asked for, or the one that is there; none if there is none.
///
/// # Errors
/// [`Error::Missing`] if one is named that is not there.
pub(crate) fn place(asked: Option<&Path>) -> Result<Option<PathBuf>, Error> {
    let candidate = candidate(asked, |name| std::env::var_os(name));
    let Some((path, named)) = candidate else { return Ok(None) };
    match path.try_exists() {
        Ok(true) => Ok(Some(path)),
        Ok(false) if named => Err(Error::Missing { path }),
        Err(source) if named => Err(Error::Read { path, source }),
        // It cannot be seen where nobody said it is: the home may be no directory, or somebody else's.
        Ok(false) | Err(_) => Ok(None),
    }
}

/// The one place where it may be, and whether somebody named it.
fn candidate(
    asked: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<(PathBuf, bool)> {
    if let Some(path) = asked {
        return Some((path.to_owned(), true));
    }
    if let Some(path) = variable(FILE) {
        return (!path.is_empty()).then(|| (path.into(), true));
    }
    let directory = |name: &str| variable(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let state = directory(STATE).map(|state| state.join(NAME));
    let of_user = || {
        let user = directory("XDG_CONFIG_HOME")
            .or_else(|| directory("HOME").map(|home| home.join(".config")))
            .or_else(|| directory("APPDATA"))?;
        Some(user.join("cake").join(NAME))
    };
    state.or_else(of_user).map(|path| (path, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_that_is_named_counts() {
        let all = [(FILE, "/f"), (STATE, "/s"), ("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")];
        let found = |asked: Option<&str>, from: usize| {
            let variable = |name: &str| {
                let set = all[from..].iter().find(|(known, _)| *known == name);
                set.map(|(_, value)| OsString::from(value))
            };
            candidate(asked.map(Path::new), variable)
        };
        let expected = |path: &str, named| Some((PathBuf::from(path), named));
        assert_eq!(found(Some("a"), 0), expected("a", true));
        assert_eq!(found(None, 0), expected("/f", true));
        assert_eq!(found(None, 1), expected("/s/cake.toml", false));
        assert_eq!(found(None, 2), expected("/x/cake/cake.toml", false));
        assert_eq!(found(None, 3), expected("/h/.config/cake/cake.toml", false));
        assert_eq!(found(None, 4), None);
        assert_eq!(candidate(None, |_| Some(OsString::new())), None, "an empty name is for none");
    }

    #[test]
    fn a_file_that_somebody_names_has_to_be_there() {
        let missing = place(Some(Path::new("/nowhere/cake.toml"))).expect_err("not there");
        assert!(missing.to_string().contains("/nowhere/cake.toml"), "{missing}");
    }
}
