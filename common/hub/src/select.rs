//! Which files of a repository are wanted.

use glob::{MatchOptions, Pattern};

use cake_checkpoint::container::safetensors::index::EXTENSION;

use crate::error::Error;

/// Ends of the names of texts that a model needs, beside its weights.
const TEXTS: &[&str] = &[".json", ".jinja", ".txt"];
/// A text by its whole name.
const TOKENIZER: &str = "tokenizer.model";
/// The one folder whose files belong to a model.
const TEMPLATES: &str = "additional_chat_templates/";
/// Weights in their authors' own layout, which lie beside the same ones in the usual layout.
const CONSOLIDATED: &str = "consolidated";
/// How many names a sentence has.
const NAMED: usize = 3;
/// As the Hub's tools read patterns: a star means slashes, too.
const MATCH: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// Whether a file holds weights.
pub(crate) fn is_weights(name: &str) -> bool {
    name.ends_with(EXTENSION)
}

/// What a model needs, of all files of its repository.
pub(crate) fn needed<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let weights = |name: &str| is_weights(name) && !name.contains('/');
    let is_original = |name: &str| name.starts_with(CONSOLIDATED);
    let both = names.iter().any(|name| weights(name) && !is_original(name));
    let is_needed = |name: &&str| {
        let text = TEXTS.iter().any(|end| name.ends_with(end)) || *name == TOKENIZER;
        match name.contains('/') {
            true => name.starts_with(TEMPLATES),
            false => (text || weights(name)) && !(both && is_original(name)),
        }
    };
    names.iter().copied().filter(is_needed).collect()
}

/// Those that fit one of the patterns.
pub(crate) fn fitting<'a>(names: &[&'a str], patterns: &[Pattern]) -> Vec<&'a str> {
    let fits = |name: &&str| patterns.iter().any(|pattern| pattern.matches_with(name, MATCH));
    names.iter().copied().filter(fits).collect()
}

/// Patterns, or which of them is none.
pub(crate) fn patterns(texts: &[String]) -> Result<Vec<Pattern>, Error> {
    let parsed = |text: &String| {
        Pattern::new(text).map_err(|cause| Error::Pattern { pattern: text.clone(), cause })
    };
    texts.iter().map(parsed).collect()
}

/// A few names, and how many more there are.
pub(crate) fn summary<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.len() {
        0 => "nothing".to_owned(),
        few if few <= NAMED => names.join(", "),
        many => format!("{} and {} more", names[..NAMED].join(", "), many - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_needs_its_weights_and_texts() {
        let names = [
            "README.md",
            ".gitattributes",
            "config.json",
            "m-00001-of-00002.safetensors",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tool.jinja",
            "tokenizer.model",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "onnx/config.json",
            "original/params.json",
            "original/m.safetensors",
            "consolidated.safetensors",
            "m.gguf",
            "m.safetensors.index.json",
        ];
        assert_eq!(
            needed(&names),
            [
                "config.json",
                "m-00001-of-00002.safetensors",
                "merges.txt",
                "chat_template.jinja",
                "additional_chat_templates/tool.jinja",
                "tokenizer.model",
                "m.safetensors.index.json",
            ]
        );
        let only = ["consolidated.safetensors", "params.json"];
        assert_eq!(needed(&only), only);
    }

    #[test]
    fn patterns_are_those_of_the_hubs_tools() {
        let names = ["a.gguf", "sub/b.gguf", "config.json"];
        let chosen = |text: &str| fitting(&names, &patterns(&[text.to_owned()]).unwrap());
        assert_eq!(chosen("*.gguf"), ["a.gguf", "sub/b.gguf"]);
        assert_eq!(chosen("sub/*"), ["sub/b.gguf"]);
        assert_eq!(chosen("config.json"), ["config.json"]);
        assert!(patterns(&["[".to_owned()]).is_err());
    }

    #[test]
    fn many_names_are_a_few_and_a_number() {
        assert_eq!(summary([]), "nothing");
        assert_eq!(summary(["a", "b"]), "a, b");
        assert_eq!(summary(["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
