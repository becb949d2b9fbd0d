//! The quoted texts in a template's source: what it may look for in the messages.

/// The contents of all quoted strings inside of `{{ }}` and `{% %}`, each once.
pub(super) fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let tag = &rest[at + 1..];
        rest = match tag.chars().next() {
            Some('#') => tag.split_once("#}").map_or("", |(_, after)| after),
            Some('{' | '%') => tagged(&tag[1..], &mut found),
            _ => tag,
        };
    }
    found.sort();
    found.dedup();
    found
}

/// Collects the strings of one tag and gives what follows it.
fn tagged<'a>(tag: &'a str, found: &mut Vec<String>) -> &'a str {
    let mut characters = tag.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '"' => {
                let mut text = String::new();
                while let Some((_, inner)) = characters.next() {
                    match inner {
                        '\\' => {
                            text.extend(characters.next().map(|(_, escaped)| unescape(escaped)))
                        }
                        end if end == character => break,
                        other => text.push(other),
                    }
                }
                found.push(text);
            }
            '}' | '%' if matches!(&tag.get(at..at + 2), Some("}}" | "%}")) => {
                return &tag[at + 2..];
            }
            _ => {}
        }
    }
    ""
}

fn unescape(escaped: char) -> char {
    match escaped {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::literals;

    #[test]
    fn quoted_texts_are_found_in_tags_alone() {
        let source = r#"it's {# 'no' #}{{ "a\n'b'" ~ x['c'] }} don't {% if '</think>' in y -%}{ 'z' }{{ '}}' }}{{ 'open"#;
        assert_eq!(literals(source), ["</think>", "a\n'b'", "c", "open", "}}"]);
        assert_eq!(literals("{"), [""; 0]);
        assert_eq!(literals("{{ '\\"), [""]);
    }
}
