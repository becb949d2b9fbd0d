//! What a peer says in words, made fit for terminals, logs and pages.

/// Most characters of it that are shown.
const MOST: usize = 500;

/// One line of at most 500 characters without control characters, whatever the peer sent.
pub fn sentence(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().map(plain).take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_is_one_plain_line() {
        assert_eq!(sentence("disk full"), "disk full");
        assert_eq!(sentence("\u{1b}[31mred\nnext\r\u{7}"), "[31mred next");
        let long = sentence(&"ä".repeat(1 << 20));
        assert_eq!(long.chars().count(), MOST + 1);
        assert!(long.ends_with('…'));
    }
}
