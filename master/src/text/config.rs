//! The optional text files of a checkpoint: special tokens, switches and chat templates.
//!
//! None of them is needed for plain text, so what cannot be read is a warning and counts as absent.

use std::collections::BTreeMap;
use std::io;

use cake_checkpoint::TextFiles;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

/// Longest optional file that is read; real ones stay under a few MiB.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Keys of `tokenizer_config.json` that name one special token each.
const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Sequence lengths from here on mean "no limit"; transformers writes 10^30 for that.
const NO_MAX_LENGTH: f64 = 1e15;

/// What the optional files of one checkpoint say.
#[derive(Default)]
pub(super) struct TextConfig {
    /// Special tokens by their key, such as `bos_token`.
    pub(super) named: BTreeMap<String, String>,
    /// Further special tokens without a role of their own.
    pub(super) extra: Vec<String>,
    /// Tokens with their ids that may be missing in `tokenizer.json`.
    pub(super) added: BTreeMap<u32, AddedToken>,
    /// Whether plain text gets a `bos_token` in front; absent means as the post-processor says.
    pub(super) add_bos: Option<bool>,
    /// Whether plain text gets an `eos_token` behind.
    pub(super) add_eos: Option<bool>,
    /// Most tokens the model was made for, if limited.
    pub(super) model_max_length: Option<u64>,
    /// The chat template for plain conversations.
    pub(super) template: Option<TemplateSource>,
}

/// A chat template's text and the file it was found in.
pub(super) struct TemplateSource {
    pub(super) source: String,
    pub(super) origin: String,
}

/// Reads every optional file; what is wrong with one goes to `warnings`.
pub(super) fn read(texts: &TextFiles, warnings: &mut Vec<String>) -> TextConfig {
    let mut files = Files { texts, warnings };
    let mut config = TextConfig::default();
    let mut templates = BTreeMap::new();

    // From the weakest source to the strongest; later ones replace what earlier ones said.
    if let Some(legacy) = files.object("chat_template.json") {
        files.templates("chat_template.json", legacy.get("chat_template"), &mut templates);
    }
    if let Some(map) = files.object("special_tokens_map.json") {
        files.special_tokens("special_tokens_map.json", &map, &mut config);
    }
    if let Some(main) = files.object("tokenizer_config.json") {
        let name = "tokenizer_config.json";
        files.special_tokens(name, &main, &mut config);
        files.added_tokens(name, &main, &mut config);
        config.add_bos = files.switch(name, &main, "add_bos_token");
        config.add_eos = files.switch(name, &main, "add_eos_token");
        config.model_max_length = files.max_length(name, &main);
        files.templates(name, main.get("chat_template"), &mut templates);
    }
    files.template_files(&mut templates);

    config.template = templates.remove("default");
    if config.template.is_none() && !templates.is_empty() {
        let names: Vec<&str> = templates.keys().map(String::as_str).collect();
        let names = names.join(", ");
        warnings.push(format!("no chat template is named \"default\", only {names}"));
    }
    config
}

/// The files being read and the warnings about them.
struct Files<'a> {
    texts: &'a TextFiles,
    warnings: &'a mut Vec<String>,
}

impl Files<'_> {
    /// The JSON object in a file, if it is there and is one.
    fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        let text = self.text(name)?;
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Some(object),
            Ok(_) => self.warn(format!("{name} is ignored: it is not a JSON object")),
            Err(error) => self.warn(format!("{name} is ignored: it is not valid JSON: {error}")),
        }
    }

    /// The text of a file, if it is there and is text.
    fn text(&mut self, name: &str) -> Option<String> {
        let bytes = match self.texts.read(name, MAX_CONFIG_BYTES) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(bytes)) => {
                return self.warn(format!("{name} is ignored: {bytes} bytes are too many"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return self.warn(format!("{name} is ignored: {error}")),
        };
        match String::from_utf8(bytes.into_owned()) {
            Ok(text) => Some(text),
            Err(_) => self.warn(format!("{name} is ignored: it is not UTF-8 text")),
        }
    }

    fn special_tokens(&mut self, file: &str, from: &Map<String, Value>, config: &mut TextConfig) {
        for name in NAMED_TOKENS {
            match from.get(name) {
                None => {}
                Some(Value::Null) => {
                    config.named.remove(name);
                }
                Some(value) => match token_text(value) {
                    Some(token) => {
                        config.named.insert(name.to_owned(), token.to_owned());
                    }
                    None => self.ignored(file, name),
                },
            }
        }
        // The older spelling and the newer one.
        for name in ["additional_special_tokens", "extra_special_tokens"] {
            match from.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::Array(tokens)) => {
                    config.extra.extend(tokens.iter().filter_map(token_text).map(str::to_owned));
                }
                Some(Value::Object(tokens)) => {
                    for (key, value) in tokens {
                        if let Some(token) = token_text(value) {
                            config.named.insert(key.clone(), token.to_owned());
                        }
                    }
                }
                Some(_) => self.ignored(file, name),
            }
        }
    }

    fn added_tokens(&mut self, file: &str, from: &Map<String, Value>, config: &mut TextConfig) {
        const KEY: &str = "added_tokens_decoder";
        let tokens = match from.get(KEY) {
            None | Some(Value::Null) => return,
            Some(Value::Object(tokens)) => tokens,
            Some(_) => return self.ignored(file, KEY),
        };
        for (id, value) in tokens {
            match (id.parse(), token_text(value)) {
                (Ok(id), Some(token)) => {
                    config.added.insert(id, added_token(token, value));
                }
                _ => self.ignored(file, &format!("{KEY}.{id}")),
            }
        }
    }

    fn switch(&mut self, file: &str, from: &Map<String, Value>, key: &str) -> Option<bool> {
        match from.get(key)? {
            Value::Bool(on) => return Some(*on),
            Value::Null => {}
            _ => self.ignored(file, key),
        }
        None
    }

    fn max_length(&mut self, file: &str, from: &Map<String, Value>) -> Option<u64> {
        let value = from.get("model_max_length").filter(|value| !value.is_null())?;
        match value.as_f64() {
            Some(tokens) if (1.0..NO_MAX_LENGTH).contains(&tokens) => Some(tokens as u64),
            Some(tokens) if tokens >= NO_MAX_LENGTH => None,
            _ => {
                self.ignored(file, "model_max_length");
                None
            }
        }
    }

    /// Templates of a JSON file: one string, or a list of named ones.
    fn templates(
        &mut self,
        file: &str,
        value: Option<&Value>,
        templates: &mut BTreeMap<String, TemplateSource>,
    ) {
        let template =
            |source: &str| TemplateSource { source: source.to_owned(), origin: file.to_owned() };
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(source)) => {
                templates.insert("default".to_owned(), template(source));
            }
            Some(Value::Array(list)) => {
                for entry in list {
                    let part = |key| entry.get(key).and_then(Value::as_str);
                    match (part("name"), part("template")) {
                        (Some(name), Some(source)) => {
                            templates.insert(name.to_owned(), template(source));
                        }
                        _ => self.ignored(file, "a chat_template without name or template"),
                    }
                }
            }
            Some(_) => self.ignored(file, "chat_template"),
        }
    }

    /// Templates in files of their own.
    fn template_files(&mut self, templates: &mut BTreeMap<String, TemplateSource>) {
        const EXTRA: &str = "additional_chat_templates";
        for file in self.texts.names_in(EXTRA) {
            let Some(name) = file.strip_suffix(".jinja") else {
                continue;
            };
            let origin = format!("{EXTRA}/{file}");
            if let Some(source) = self.text(&origin) {
                templates.insert(name.to_owned(), TemplateSource { source, origin });
            }
        }
        let origin = "chat_template.jinja".to_owned();
        if let Some(source) = self.text(&origin) {
            templates.insert("default".to_owned(), TemplateSource { source, origin });
        }
    }

    fn ignored(&mut self, file: &str, key: &str) {
        self.warnings.push(format!("{file}: {key} is ignored: it has an unexpected form"));
    }

    fn warn<T>(&mut self, warning: String) -> Option<T> {
        self.warnings.push(warning);
        None
    }
}

/// A token's text: a string, or an object with its `content`.
fn token_text(value: &Value) -> Option<&str> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    Some(text).filter(|text| !text.is_empty())
}

/// A token with the flags of its JSON object.
fn added_token(text: &str, value: &Value) -> AddedToken {
    let flag = |key| value.get(key).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    AddedToken::from(text, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn read_directory(directory: &Path, warnings: &mut Vec<String>) -> TextConfig {
        read(&TextFiles::Directory(directory.to_owned()), warnings)
    }

    fn read_files(files: &[(&str, &str)]) -> (TextConfig, Vec<String>) {
        let directory = tempfile::tempdir().expect("temporary directory");
        for (name, content) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("creates");
            fs::write(path, content).expect("writes");
        }
        let mut warnings = Vec::new();
        (read_directory(directory.path(), &mut warnings), warnings)
    }

    fn template(config: &TextConfig) -> Option<(&str, &str)> {
        config.template.as_ref().map(|found| (found.source.as_str(), found.origin.as_str()))
    }

    #[test]
    fn an_empty_directory_says_nothing() {
        let (config, warnings) = read_files(&[]);
        assert!(warnings.is_empty());
        assert!(config.named.is_empty() && config.template.is_none() && config.add_bos.is_none());
    }

    #[test]
    fn reads_every_spelling_of_a_token() {
        let (config, warnings) = read_files(&[(
            "tokenizer_config.json",
            r#"{"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"},
                "unk_token": {"content": "<unk>"}, "pad_token": null,
                "additional_special_tokens": ["<a>", {"content": "<b>"}],
                "extra_special_tokens": {"image_token": "<image>"},
                "added_tokens_decoder": {"7": {"content": "<x>", "lstrip": true, "special": true}},
                "add_bos_token": true, "add_eos_token": false,
                "model_max_length": 1000000000000000019884624838656}"#,
        )]);
        assert_eq!(warnings, [""; 0]);
        let named: Vec<(&str, &str)> =
            config.named.iter().map(|(name, token)| (name.as_str(), token.as_str())).collect();
        assert_eq!(
            named,
            [
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("image_token", "<image>"),
                ("unk_token", "<unk>")
            ]
        );
        assert_eq!(config.extra, ["<a>", "<b>"]);
        assert_eq!(config.added[&7], AddedToken::from("<x>", true).lstrip(true));
        assert_eq!((config.add_bos, config.add_eos), (Some(true), Some(false)));
        assert_eq!(config.model_max_length, None);
    }

    #[test]
    fn the_tokenizer_configuration_overrides_the_older_map() {
        let (config, _) = read_files(&[
            (
                "special_tokens_map.json",
                r#"{"bos_token": "<old>", "eos_token": "<e>", "pad_token": "<p>"}"#,
            ),
            (
                "tokenizer_config.json",
                r#"{"bos_token": "<new>", "pad_token": null, "model_max_length": 8192}"#,
            ),
        ]);
        assert_eq!(config.named["bos_token"], "<new>");
        assert_eq!(config.named["eos_token"], "<e>");
        assert!(!config.named.contains_key("pad_token"));
        assert_eq!(config.model_max_length, Some(8192));
    }

    #[test]
    fn the_strongest_source_of_a_template_wins() {
        let jinja = ("chat_template.jinja", "file");
        let extra = ("additional_chat_templates/default.jinja", "extra");
        let single = ("tokenizer_config.json", r#"{"chat_template": "string"}"#);
        let legacy = ("chat_template.json", r#"{"chat_template": "legacy"}"#);
        let found = |files: &[(&str, &str)]| {
            let (config, warnings) = read_files(files);
            assert_eq!(warnings, [""; 0]);
            template(&config).map(|(source, origin)| (source.to_owned(), origin.to_owned()))
        };
        let expect = |source: &str, origin: &str| Some((source.to_owned(), origin.to_owned()));
        assert_eq!(found(&[legacy]), expect("legacy", legacy.0));
        assert_eq!(found(&[legacy, single]), expect("string", single.0));
        assert_eq!(found(&[legacy, single, extra]), expect("extra", extra.0));
        assert_eq!(found(&[legacy, single, extra, jinja]), expect("file", jinja.0));
    }

    #[test]
    fn picks_the_default_of_a_list_of_templates() {
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "T"},
                                         {"name": "default", "template": "D"}]}"#;
        let (config, warnings) = read_files(&[("tokenizer_config.json", list)]);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(template(&config), Some(("D", "tokenizer_config.json")));

        let (config, warnings) = read_files(&[
            (
                "tokenizer_config.json",
                r#"{"chat_template": [{"name": "rag", "template": "R"}, {"name": 5}]}"#,
            ),
            ("additional_chat_templates/tool_use.jinja", "T"),
            ("additional_chat_templates/notes.txt", "not a template"),
        ]);
        assert!(config.template.is_none());
        assert_eq!(
            warnings,
            [
                "tokenizer_config.json: a chat_template without name or template is ignored: it has \
                 an unexpected form",
                "no chat template is named \"default\", only rag, tool_use",
            ]
        );
    }

    #[test]
    fn garbage_is_a_warning() {
        let (config, warnings) = read_files(&[
            ("special_tokens_map.json", "[1, 2]"),
            ("chat_template.json", "{\"chat_template\": "),
            (
                "tokenizer_config.json",
                r#"{"bos_token": 5, "eos_token": "", "additional_special_tokens": 3,
                    "added_tokens_decoder": {"x": {"content": "<x>"}, "1": {}},
                    "add_bos_token": "yes", "add_eos_token": null, "model_max_length": "long",
                    "chat_template": {"a": 1}}"#,
            ),
        ]);
        assert!(config.named.is_empty() && config.added.is_empty() && config.template.is_none());
        let form = |key: &str| {
            format!("tokenizer_config.json: {key} is ignored: it has an unexpected form")
        };
        assert_eq!(
            warnings,
            [
                "chat_template.json is ignored: it is not valid JSON: EOF while parsing a value at \
                 line 1 column 18"
                    .to_owned(),
                "special_tokens_map.json is ignored: it is not a JSON object".to_owned(),
                form("bos_token"),
                form("eos_token"),
                form("additional_special_tokens"),
                form("added_tokens_decoder.x"),
                form("added_tokens_decoder.1"),
                form("add_bos_token"),
                form("model_max_length"),
                form("chat_template"),
            ]
        );
    }

    #[test]
    fn unreadable_files_are_warnings() {
        let directory = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(directory.path().join("tokenizer_config.json")).expect("creates");
        fs::write(directory.path().join("chat_template.jinja"), [0xFF, 0xFE]).expect("writes");
        let large = fs::File::create(directory.path().join("chat_template.json")).expect("creates");
        large.set_len(MAX_CONFIG_BYTES + 1).expect("sparse");
        let mut warnings = Vec::new();
        let config = read_directory(directory.path(), &mut warnings);
        assert!(config.template.is_none());
        assert_eq!(warnings.len(), 3);
        assert_eq!(warnings[0], "chat_template.json is ignored: 67108865 bytes are too many");
        assert!(warnings[1].starts_with("tokenizer_config.json is ignored: "), "{}", warnings[1]);
        assert_eq!(warnings[2], "chat_template.jinja is ignored: it is not UTF-8 text");
    }
}
