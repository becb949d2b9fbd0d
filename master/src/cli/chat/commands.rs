//! What a person types that is not for the model.

use std::path::PathBuf;

/// What `/help` says.
pub(super) const HELP: &str = "\
/clear         begin again; the system message stays
/system TEXT   give the model this system message from now on, or none without TEXT
/thoughts      show what the model thought before its last answer
/save FILE     write the whole conversation to a new file; as JSON if its name ends in .json
/help          this
//TEXT         say /TEXT to the model
An empty line or Ctrl-D ends the chat.";

/// One turn of a person's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// For the model.
    Say(String),
    /// Begin again.
    Clear,
    /// Another system message, or none.
    System(Option<String>),
    /// Show what the model thought.
    Thoughts,
    /// Write the conversation to this file.
    Save(PathBuf),
    /// Show the commands.
    Help,
    /// Something like a command, and what is wrong with it.
    Wrong(String),
}

impl Typed {
    /// Reads a line, or several, without white space around them.
    pub(super) fn parse(text: &str) -> Self {
        let Some(command) = text.strip_prefix('/') else { return Self::Say(text.to_owned()) };
        if command.starts_with('/') {
            return Self::Say(command.to_owned());
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, rest.trim()) {
            ("clear", "") => Self::Clear,
            ("help", "") => Self::Help,
            ("thoughts", "") => Self::Thoughts,
            ("system", "") => Self::System(None),
            ("system", said) => Self::System(Some(said.to_owned())),
            ("save", "") => Self::Wrong("/save needs the name of a file".to_owned()),
            ("save", file) => Self::Save(file.into()),
            ("clear" | "help" | "thoughts", _) => {
                Self::Wrong(format!("/{name} takes nothing after it"))
            }
            _ => Self::Wrong(format!(
                "/{name} is no command: /help lists them, //{name} says it to the model"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_a_slash_is_a_command() {
        assert_eq!(Typed::parse("/clear"), Typed::Clear);
        assert_eq!(
            Typed::parse("/system  Be brief.\nAlways."),
            Typed::System(Some("Be brief.\nAlways.".into()))
        );
        assert_eq!(Typed::parse("/system"), Typed::System(None));
        assert_eq!(Typed::parse("/save my chat.json"), Typed::Save("my chat.json".into()));
        assert_eq!(Typed::parse("/help"), Typed::Help);
        assert_eq!(Typed::parse("/thoughts"), Typed::Thoughts);
        for wrong in ["/quit", "/", "/save", "/clear all", "/Help"] {
            assert!(matches!(Typed::parse(wrong), Typed::Wrong(_)), "{wrong}");
        }
    }

    #[test]
    fn all_else_is_said_and_a_second_slash_says_the_first() {
        assert_eq!(Typed::parse("a /clear"), Typed::Say("a /clear".into()));
        assert_eq!(Typed::parse("//etc is a folder"), Typed::Say("/etc is a folder".into()));
    }

    #[test]
    fn help_names_every_command() {
        for name in ["/clear", "/system", "/thoughts", "/save", "/help", "//"] {
            assert!(HELP.contains(name), "{name}");
        }
    }
}
