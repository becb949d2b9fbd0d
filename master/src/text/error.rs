//! Why text could not become tokens, or tokens text.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// A failure of reading a checkpoint's text files or of using them. Each sentence has its cause in it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model has no `tokenizer.json`, the only tokenizer format that is read.
    #[error("no tokenizer.json in {}{}", directory.display(), instead(*.found))]
    MissingTokenizer {
        /// Where it was looked for.
        directory: PathBuf,
        /// A tokenizer of another format that lies there.
        found: Option<&'static str>,
    },
    /// The tokenizer's file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The tokenizer's file is longer than any real one.
    #[error("{} has {bytes} bytes, more than the {limit_bytes} that are read", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length, or as much as was seen of it.
        bytes: u64,
        /// The longest that is accepted.
        limit_bytes: u64,
    },
    /// `tokenizer.json` is not JSON, or describes no tokenizer.
    #[error("{} is not a valid tokenizer: {source}", path.display())]
    InvalidTokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: tokenizers::Error,
    },
    /// `tokenizer.json` asks for a decoder that cannot be trusted with every token.
    #[error("{} has a decoder that is not supported: {detail}", path.display())]
    UnsupportedDecoder {
        /// The file.
        path: PathBuf,
        /// Which decoder, with which setting.
        detail: String,
    },
    /// A token that generation relies on has no id.
    #[error("{field} {token:?} is not in the tokenizer's vocabulary")]
    UnknownSpecialToken {
        /// The key that names it, such as `eos_token`.
        field: &'static str,
        /// The token's text.
        token: String,
    },
    /// The checkpoint brings no chat template, so messages have no written form.
    #[error("the model has no chat template; give it plain text instead")]
    NoChatTemplate,
    /// The chat template does not parse, or fails for a reason of its own.
    #[error("the chat template in {origin} cannot be used: {reason}")]
    ChatTemplate {
        /// The file that holds it.
        origin: String,
        /// What is wrong, and in which line: text, as another process may have found it.
        reason: String,
    },
    /// The chat template takes more than any real one does.
    #[error("the chat template in {origin} exceeds {bound}")]
    TemplateExceeds {
        /// The file that holds it.
        origin: String,
        /// What it may take.
        bound: Bound,
    },
    /// The process that renders templates cannot be started.
    #[error("cannot start a process that renders the chat template: {source}")]
    NoRenderer {
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The process that renders templates ended, and so did the next one; neither by a bound of its own.
    #[error("the process that renders the chat template ended before its answer: {status}")]
    RendererEnded {
        /// How.
        status: ExitStatus,
    },
    /// Control tokens cannot be told from text.
    #[error(
        "the messages use all the private characters by which control tokens are told from text"
    )]
    NoMask,
    /// A template that does not write the last message's content as it is.
    #[error(
        "the chat template leaves out some of the last message's content, so that it cannot be continued"
    )]
    NotContinued,
    /// A prompt that cannot fit, whatever its tokens are.
    #[error("the prompt of {bytes} bytes is longer than the context of {room} tokens can hold")]
    PromptTooLong {
        /// Length of the prompt in UTF-8.
        bytes: usize,
        /// Tokens that fit.
        room: usize,
    },
    /// The chat template called `raise_exception`: it does not accept these messages.
    #[error("the chat template in {origin} refuses these messages: {message}")]
    MessagesRefused {
        /// The file that holds the template.
        origin: String,
        /// What the template said.
        message: String,
    },
    /// The tokenizer could not split a text.
    #[error("cannot turn text of {bytes} bytes into tokens: {source}")]
    Encode {
        /// Length of the text in UTF-8.
        bytes: usize,
        /// What the tokenizer said.
        #[source]
        source: tokenizers::Error,
    },
    /// The tokenizer could not join tokens.
    #[error("cannot turn {tokens} tokens into text: {source}")]
    Decode {
        /// How many token ids were given.
        tokens: usize,
        /// What the tokenizer said.
        #[source]
        source: tokenizers::Error,
    },
}

/// What a chat template may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes of its source.
    Source(usize),
    /// Instructions.
    Steps(u64),
    /// Bytes of the text that it writes: those that fit into the context, or more than those of any prompt.
    Output(usize),
    /// Seconds.
    Time(u64),
    /// Bytes in which it runs, or its stack.
    Memory(u64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(bytes) => write!(f, "the {bytes} bytes that are read of one"),
            Self::Steps(steps) => write!(f, "the {steps} steps that it may take"),
            Self::Output(bytes) => {
                write!(f, "the {bytes} bytes that a prompt may have: the context cannot hold more")
            }
            Self::Time(seconds) => write!(f, "the {seconds} s that it may take"),
            Self::Memory(bytes) => {
                write!(f, "the {} MiB of memory that it may take, or its stack", bytes >> 20)
            }
        }
    }
}

/// The half sentence that names the tokenizer which was found in place of `tokenizer.json`.
fn instead(found: Option<&'static str>) -> String {
    found
        .map(|name| format!("; {name} is there, but must be converted to tokenizer.json first"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_one_clear_sentence() {
        let inner = || -> tokenizers::Error { "inner cause".into() };
        let path = || PathBuf::from("model/tokenizer.json");
        let table: [(Error, &str); 19] = [
            (
                Error::MissingTokenizer { directory: "model".into(), found: None },
                "no tokenizer.json in model",
            ),
            (
                Error::MissingTokenizer {
                    directory: "model".into(),
                    found: Some("tokenizer.model"),
                },
                "no tokenizer.json in model; tokenizer.model is there, but must be converted to \
                 tokenizer.json first",
            ),
            (
                Error::Unreadable { path: path(), source: std::io::ErrorKind::NotFound.into() },
                "cannot read model/tokenizer.json: entity not found",
            ),
            (
                Error::TooLong { path: path(), bytes: 30, limit_bytes: 20 },
                "model/tokenizer.json has 30 bytes, more than the 20 that are read",
            ),
            (
                Error::InvalidTokenizer { path: path(), source: inner() },
                "model/tokenizer.json is not a valid tokenizer: inner cause",
            ),
            (
                Error::UnsupportedDecoder { path: path(), detail: "Strip with stop 1".into() },
                "model/tokenizer.json has a decoder that is not supported: Strip with stop 1",
            ),
            (
                Error::UnknownSpecialToken { field: "eos_token", token: "</s>".into() },
                "eos_token \"</s>\" is not in the tokenizer's vocabulary",
            ),
            (Error::NoChatTemplate, "the model has no chat template; give it plain text instead"),
            (
                Error::ChatTemplate { origin: "a.jinja".into(), reason: "unexpected end".into() },
                "the chat template in a.jinja cannot be used: unexpected end",
            ),
            (
                Error::TemplateExceeds { origin: "a.jinja".into(), bound: Bound::Memory(3 << 20) },
                "the chat template in a.jinja exceeds the 3 MiB of memory that it may take, or its \
                 stack",
            ),
            (
                Error::TemplateExceeds { origin: "a.jinja".into(), bound: Bound::Output(10) },
                "the chat template in a.jinja exceeds the 10 bytes that a prompt may have: the \
                 context cannot hold more",
            ),
            (
                Error::NoRenderer { source: std::io::ErrorKind::NotFound.into() },
                "cannot start a process that renders the chat template: entity not found",
            ),
            (
                Error::RendererEnded { status: ExitStatus::default() },
                "the process that renders the chat template ended before its answer: exit status: \
                 0",
            ),
            (
                Error::NoMask,
                "the messages use all the private characters by which control tokens are told from \
                 text",
            ),
            (
                Error::NotContinued,
                "the chat template leaves out some of the last message's content, so that it cannot \
                 be continued",
            ),
            (
                Error::PromptTooLong { bytes: 100, room: 8 },
                "the prompt of 100 bytes is longer than the context of 8 tokens can hold",
            ),
            (
                Error::MessagesRefused {
                    origin: "chat_template.jinja".into(),
                    message: "roles must alternate".into(),
                },
                "the chat template in chat_template.jinja refuses these messages: roles must \
                 alternate",
            ),
            (
                Error::Encode { bytes: 5, source: inner() },
                "cannot turn text of 5 bytes into tokens: inner cause",
            ),
            (
                Error::Decode { tokens: 3, source: inner() },
                "cannot turn 3 tokens into text: inner cause",
            ),
        ];
        for (error, sentence) in table {
            assert_eq!(error.to_string(), sentence);
        }
    }
}
