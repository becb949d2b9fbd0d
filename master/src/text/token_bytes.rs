//! The bytes behind each token, as tokenizers write them in their vocabularies.

use tokenizers::{Decoder, DecoderWrapper};

use super::Text;
use super::byte_chars::bytes_of_chars;

/// What sentencepiece writes for a space.
const SPACE: char = '\u{2581}';

impl Text {
    /// The bytes that each of the first `vocab_size` ids adds to a text; none for special tokens and for
    /// ids without a token.
    pub fn token_bytes(&self, vocab_size: usize) -> Vec<Option<Vec<u8>>> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let decoders = steps(self.tokenizer.get_decoder());
        let is_byte_level = decoders.iter().any(|it| matches!(it, DecoderWrapper::ByteLevel(_)));
        let bytes_of_chars = is_byte_level.then(bytes_of_chars);
        let mut all = vec![None; vocab_size];
        for (token, id) in self.tokenizer.get_vocab(true) {
            let Some(place) = all.get_mut(id as usize) else { continue };
            *place = match added.get(&id) {
                Some(added) if added.special => None,
                Some(added) => Some(added.content.clone().into_bytes()),
                None => Some(match (&bytes_of_chars, byte(&token)) {
                    (Some(bytes), _) => {
                        token.chars().filter_map(|c| bytes.get(&c)).copied().collect()
                    }
                    (None, Some(byte)) if self.byte_fallback => vec![byte],
                    (None, _) => replaced(&decoders, token).replace(SPACE, " ").into_bytes(),
                }),
            };
        }
        all
    }
}

/// The byte of a token like `<0x0A>`.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The steps of a decoder, in their order.
fn steps(decoder: Option<&DecoderWrapper>) -> Vec<&DecoderWrapper> {
    match decoder {
        Some(DecoderWrapper::Sequence(sequence)) => {
            sequence.get_decoders().iter().flat_map(|decoder| steps(Some(decoder))).collect()
        }
        other => other.into_iter().collect(),
    }
}

/// A token after what a decoder replaces in it: of pieces that are called otherwise in the vocabulary, the text.
fn replaced(decoders: &[&DecoderWrapper], token: String) -> String {
    let replace = |token: String, step: &&DecoderWrapper| match step {
        DecoderWrapper::Replace(replace) => {
            let pieces = replace.decode_chain(vec![token.clone()]);
            pieces.map_or(token, |pieces| pieces.concat())
        }
        _ => token,
    };
    decoders.iter().fold(token, replace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::samples;

    #[test]
    fn the_bytes_of_all_tokens_of_a_text_are_the_text() {
        let directories = std::fs::read_dir(samples::golden_directory()).expect("lists");
        let golden = directories.map(|entry| entry.expect("an entry").path());
        for path in golden.filter(|path| path.is_dir()) {
            let text = Text::open(&path).expect("opens");
            let bytes = text.token_bytes(text.vocab_size());
            for sample in ["{\"a\": [1, 2.5, null]}", "Hello, wörld 🦉!\n\tTwo  spaces"] {
                let ids = text.encode(sample, false).expect("encodes");
                let joined: Vec<u8> =
                    ids.iter().flat_map(|id| bytes[*id as usize].clone().expect("bytes")).collect();
                let joined = String::from_utf8(joined).expect("UTF-8");
                // Sentencepiece begins with a space.
                assert_eq!(
                    joined.strip_prefix(' ').unwrap_or(&joined),
                    sample,
                    "{}",
                    path.display()
                );
            }
        }
        let demo = samples::demo();
        let start = demo.token_id("<|im_start|>").expect("a special token");
        assert_eq!(demo.token_bytes(demo.vocab_size())[start as usize], None);
    }

    #[test]
    fn pieces_under_other_names_have_the_bytes_of_their_text() {
        let mut tokenizer = samples::byte_fallback_json();
        tokenizer["model"]["vocab"]["<0x0A><0x0A>▁a"] = 17.into();
        let decoders = tokenizer["decoder"]["decoders"].as_array_mut().expect("steps");
        let named = serde_json::json!(
            {"type": "Replace", "pattern": {"String": "<0x0A>"}, "content": "\n"}
        );
        decoders.insert(1, named);
        let directory = samples::directory_with(&[("tokenizer.json", tokenizer)]);
        let text = Text::open(directory.path()).expect("opens");
        let bytes = text.token_bytes(text.vocab_size());
        assert_eq!(bytes[17].as_deref(), Some(&b"\n\n a"[..]));
        assert_eq!(bytes[3].as_deref(), Some(&b"\n"[..]), "a byte is one under its own name, too");
    }

    #[test]
    fn bytes_that_cannot_be_printed_have_characters_of_their_own() {
        let bytes = bytes_of_chars();
        assert_eq!(bytes.len(), 256);
        assert_eq!((bytes[&'Ġ'], bytes[&'Ċ'], bytes[&'a'], bytes[&'Ń']), (b' ', b'\n', b'a', 0xad));
        assert_eq!((byte("<0x0A>"), byte("<0xA>"), byte("0x0A")), (Some(10), None, None));
    }
}
