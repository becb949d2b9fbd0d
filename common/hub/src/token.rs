//! The token of a person's account at the Hub, looked for where the Hub's own tools look.

use std::fmt;
use std::path::PathBuf;

use crate::error::TokenUsed;

/// Longest token; what is longer is some other file.
const MAX_BYTES: u64 = 4096;

/// What a person shows the Hub. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub(crate) value: String,
    /// Where it was found.
    pub(crate) place: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token of {}", self.place)
    }
}

/// The first token that there is, or else where it was looked for.
pub(crate) fn find(
    variable: impl Fn(&str) -> Option<String>,
    home: Option<PathBuf>,
) -> Result<Token, Vec<String>> {
    let mut looked = Vec::new();
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        match variable(name).and_then(|text| cleaned(&text)) {
            Some(value) => return Ok(Token { value, place: name.to_owned() }),
            None => looked.push(name.to_owned()),
        }
    }
    let files = [
        variable("HF_TOKEN_PATH").map(PathBuf::from),
        variable("HF_HOME").map(|home| PathBuf::from(home).join("token")),
        home.map(|home| home.join(".cache").join("huggingface").join("token")),
    ];
    for path in files.into_iter().flatten() {
        let is_short = path.metadata().is_ok_and(|meta| meta.len() <= MAX_BYTES);
        let text = is_short.then(|| std::fs::read_to_string(&path).ok()).flatten();
        let place = path.display().to_string();
        match text.and_then(|text| cleaned(&text)) {
            Some(value) => return Ok(Token { value, place }),
            None => looked.push(place),
        }
    }
    Err(looked)
}

/// Without line ends and blanks around it; `None` if nothing is left that can be sent in a header.
fn cleaned(text: &str) -> Option<String> {
    let text = text.trim();
    let sendable = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    sendable.then(|| text.to_owned())
}

/// What to say about the token that was or was not sent.
pub(crate) fn used(token: &Result<Token, Vec<String>>) -> TokenUsed {
    match token {
        Ok(token) => TokenUsed::From(token.place.clone()),
        Err(looked) => TokenUsed::None(looked.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_that_has_a_token_counts() {
        let home = tempfile::tempdir().unwrap();
        let (own, hub) = (home.path().join("own"), home.path().join("hub"));
        std::fs::create_dir_all(home.path().join(".cache/huggingface")).unwrap();
        std::fs::create_dir(&hub).unwrap();
        let text = |path: &PathBuf| Some(path.display().to_string());
        let variables = |name: &str| match name {
            "HF_TOKEN_PATH" => text(&own),
            "HF_HOME" => text(&hub),
            _ => None,
        };
        let found = || find(variables, Some(home.path().into())).map(|token| token.value);
        assert_eq!(found().unwrap_err().len(), 5);
        for (path, value) in [
            (home.path().join(".cache/huggingface/token"), "hf_c"),
            (hub.join("token"), "hf_b"),
            (own.clone(), "hf_a"),
        ] {
            std::fs::write(path, format!(" {value}\n")).unwrap();
            assert_eq!(found().unwrap(), value);
        }
        let named = |name: &str| (name == "HF_TOKEN").then(|| "hf_first".to_owned());
        let token = find(named, None).unwrap();
        assert_eq!((token.value.as_str(), token.place.as_str()), ("hf_first", "HF_TOKEN"));
        assert!(!format!("{token:?}").contains("hf_first"));
        std::fs::write(&own, "two words").unwrap();
        assert_eq!(found().unwrap(), "hf_b", "what cannot be sent is no token");
    }
}
