//! What a person types, turn after turn: with history and several lines on a terminal, else as it comes.
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Config, Editor, Helper, KeyCode, KeyEvent, Modifiers};

use super::out;

/// Turns kept in the history.
const HISTORY: usize = 1000;
const PROMPT: &str = "> ";

/// Where turns come from.
pub(super) enum Input {
    /// A person, with the file that remembers what was typed.
    Terminal(Box<Editor<Lines, DefaultHistory>>, PathBuf),
    /// A pipe or a file.
    Plain,
}

/// A turn goes on in the next line where its line ends with a backslash.
pub(super) struct Lines;

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}
impl Helper for Lines {}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Input {
    /// Standard input; `history` is where a terminal's turns are remembered.
    pub(super) fn open(history: PathBuf) -> Input {
        if !std::io::stdin().is_terminal() {
            return Input::Plain;
        }
        let config = Config::builder().max_history_size(HISTORY).map(|config| config.build());
        let editor = config.and_then(Editor::with_config);
        let Ok(mut editor) = editor else { return Input::Plain };
        editor.set_helper(Some(Lines));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        editor.load_history(&history).ok(); // The first time there is none.
        Input::Terminal(Box::new(editor), history)
    }

    /// How to type, for those who do.
    pub(super) fn help(&self) -> &'static str {
        match self {
            Input::Terminal(..) => {
                "Type a message; Alt-Enter, or a backslash at the end of a line, goes on in the next one. \
                 Ctrl-C stops an answer, an empty line or Ctrl-D ends the chat; /help lists commands."
            }
            Input::Plain => {
                "Type a message; an empty line or Ctrl-D ends the chat; /help lists commands."
            }
        }
    }

    /// The next turn; none at the end. Blocks.
    pub(super) fn next(&mut self) -> Option<String> {
        let line = match self {
            Input::Terminal(editor, history) => loop {
                match editor.readline(PROMPT) {
                    Ok(line) => {
                        editor.add_history_entry(line.as_str()).ok();
                        editor.append_history(history).ok(); // Remembered until the end in any case.
                        break line.replace("\\\n", "\n");
                    }
                    // Perhaps meant for an answer that had just ended.
                    Err(ReadlineError::Interrupted) => out::note("(Ctrl-D ends the chat)"),
                    Err(_) => return None, // Ctrl-D, or a terminal that is gone.
                }
            },
            Input::Plain => {
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line).ok()?;
                line
            }
        };
        let line = line.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }
}
