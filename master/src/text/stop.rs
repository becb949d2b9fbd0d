//! Finding stop strings in text that arrives in pieces.

/// Watches generated text for strings that end it, wherever the pieces are cut.
///
/// Text that may be the beginning of a stop string is held back until more text decides. What
/// comes out does not depend on how the text was cut: the stop string that is complete first wins
/// (of those that end at the same place the longest), and neither it nor anything after it is
/// shown.
#[derive(Debug, Clone)]
pub struct StopStrings {
    /// None of them is empty.
    stops: Vec<String>,
    /// The end of the text so far that begins some stop string; always shorter than that string.
    held: String,
    /// Which of them was found.
    found: Option<usize>,
}

/// What one piece of text brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopScan {
    /// Text that is certain to precede every stop string and can be shown.
    pub emit: String,
    /// A stop string was found: generation is over, and no more text will come out.
    pub stopped: bool,
}

impl StopStrings {
    /// Watches for `stops`; empty strings among them are ignored.
    pub fn new(mut stops: Vec<String>) -> StopStrings {
        stops.retain(|stop| !stop.is_empty());
        StopStrings { stops, held: String::new(), found: None }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopScan {
        if self.found.is_some() {
            return StopScan { emit: String::new(), stopped: true };
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.first_stop() {
            self.found = Some(index);
            self.held.truncate(start);
            return StopScan { emit: std::mem::take(&mut self.held), stopped: true };
        }
        let tail = self.held.split_off(self.held.len() - self.undecided_bytes());
        StopScan { emit: std::mem::replace(&mut self.held, tail), stopped: false }
    }

    /// Ends the text: what was held back, empty if a stop string was found.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// Where the stop string that is complete first begins in `held`, and which it is.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_end, start, index)| (start, index))
    }

    /// Length of the longest end of `held` that begins a stop string.
    fn undecided_bytes(&self) -> usize {
        let beginnings = self.stops.iter().flat_map(|stop| {
            stop.char_indices().skip(1).map(move |(bytes, _)| &stop[..bytes]) // Neither empty nor whole.
        });
        let undecided = beginnings.filter(|beginning| self.held.ends_with(beginning));
        undecided.map(str::len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watch(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect())
    }

    /// What is shown in the end, and whether a stop string was found.
    fn shown<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
        let mut watcher = watch(stops);
        let mut text = String::new();
        let mut stopped = false;
        for piece in pieces {
            let scan = watcher.push(piece);
            text.push_str(&scan.emit);
            stopped = scan.stopped;
        }
        text.push_str(&watcher.finish());
        (text, stopped)
    }

    #[test]
    fn finds_a_stop_string_cut_over_pieces() {
        let mut watcher = watch(&["<end>"]);
        assert_eq!(watcher.push("Hello <"), StopScan { emit: "Hello ".into(), stopped: false });
        assert_eq!(watcher.push("en"), StopScan { emit: String::new(), stopped: false });
        assert_eq!(watcher.push("d> more"), StopScan { emit: String::new(), stopped: true });
        assert_eq!(watcher.found(), Some("<end>"));
        assert_eq!(watcher.push("still more"), StopScan { emit: String::new(), stopped: true });
        assert_eq!(watcher.finish(), "");
    }

    #[test]
    fn shows_what_only_looked_like_a_stop_string() {
        let mut watcher = watch(&["<end>"]);
        assert_eq!(watcher.push("a <e").emit, "a ");
        assert_eq!(watcher.push("gg").emit, "<egg");
        assert_eq!(watcher.push(" <en").emit, " ");
        assert_eq!(watcher.finish(), "<en");
    }

    #[test]
    fn keeps_a_beginning_inside_a_failed_beginning() {
        assert_eq!(shown(&["aab"], ["a", "a", "a", "b", "c"]), ("a".into(), true));
        assert_eq!(shown(&["abac"], ["ab", "ab", "ac"]), ("ab".into(), true));
        assert_eq!(shown(&["abc", "bcd", "cde"], ["ab", "b", "c", "x"]), ("abbcx".into(), false));
        assert_eq!(shown(&["abc", "bcd", "cde"], ["ab", "b", "c", "de"]), ("ab".into(), true));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(shown(&["abc", "b"], ["xabc"]), ("xa".into(), true));
        assert_eq!(shown(&["abc", "b"], ["xa", "b", "c"]), ("xa".into(), true));
        assert_eq!(shown(&["c", "abc"], ["xabc"]), ("x".into(), true));
    }

    #[test]
    fn ignores_empty_stop_strings() {
        assert_eq!(shown(&[""], ["any", "thing"]), ("anything".into(), false));
        assert_eq!(shown(&[], ["any", "thing"]), ("anything".into(), false));
    }

    #[test]
    fn holds_whole_characters_back() {
        assert_eq!(shown(&["éè"], ["caf", "é", "s"]), ("cafés".into(), false));
        assert_eq!(shown(&["éè"], ["caf", "é", "è", "s"]), ("caf".into(), true));
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(
            stops in prop::collection::vec("[ab é]{0,4}", 0..4),
            pieces in prop::collection::vec("[ab é]{0,3}", 0..12),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            let in_pieces = shown(&stops, pieces.iter().map(String::as_str));
            prop_assert_eq!(&in_pieces, &shown(&stops, [whole.as_str()]));
            let found = stops.iter().any(|stop| !stop.is_empty() && whole.contains(stop));
            prop_assert_eq!(in_pieces.1, found && !pieces.is_empty());
            prop_assert!(whole.starts_with(&in_pieces.0));
        }
    }
}
