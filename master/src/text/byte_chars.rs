//! The characters that stand for bytes in byte-level vocabularies.

use std::collections::HashMap;

/// The bytes that byte-level vocabularies write as these characters: printable ones as themselves, the
/// others from U+0100 on, in order (GPT-2's `bytes_to_unicode`).
pub(super) fn bytes_of_chars() -> HashMap<char, u8> {
    let as_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = '\u{100}'..;
    (0..=255u8)
        .map(|byte| match as_itself(byte) {
            true => (char::from(byte), byte),
            false => (others.next().expect("there are more characters than bytes"), byte),
        })
        .collect()
}
