//! Text that is not certain yet, looked through once however many pieces it comes in.

/// What is held back of a reply.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    text: String,
    /// So many bytes have not what was looked for last,
    searched: usize,
    /// or are white space, where that is what counts.
    space: usize,
}

impl Held {
    pub(super) fn push(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Takes so many bytes off the beginning. Something else may be looked for then.
    pub(super) fn take(&mut self, bytes: usize) -> String {
        let rest = self.text.split_off(bytes);
        (self.searched, self.space) = (0, 0);
        std::mem::replace(&mut self.text, rest)
    }

    /// Takes the white space off the beginning; false if there is nothing else.
    pub(super) fn cut_start(&mut self) -> bool {
        let start = self.start();
        self.take(start);
        self.len() > 0
    }

    /// Where the white space at the beginning ends.
    pub(super) fn start(&mut self) -> usize {
        let rest = &self.text[self.space..];
        self.space += rest.len() - rest.trim_start().len();
        self.space
    }

    /// Where the first of these is, and its length. The same ones are to be looked for until something is taken.
    pub(super) fn find(&mut self, markers: &[&str]) -> Option<(usize, usize)> {
        let from = self.searched;
        let at = |marker: &&str| Some((from + self.text[from..].find(marker)?, marker.len()));
        let found = markers.iter().filter_map(at).min();
        if found.is_none() {
            let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
            let from = self.text.len().saturating_sub(longest);
            self.searched = self.searched.max(self.text.floor_char_boundary(from));
        }
        found
    }

    /// How many bytes at the end may be the beginning of one of these: as many as can be.
    pub(super) fn begun(&self, markers: &[&str]) -> usize {
        let of_marker = |marker: &&str| {
            let mut beginnings = marker.char_indices().map(|(at, _)| &marker[..at]).rev();
            beginnings.find(|beginning| self.text.ends_with(beginning)).map_or(0, str::len)
        };
        markers.iter().map(of_marker).max().unwrap_or(0)
    }

    /// Where the white space begins that ends before `end`, where all that was here before this piece may be such; no further
    /// back than the beginning of a marker of so many bytes that it turned out to be none.
    pub(super) fn trimmed(&mut self, end: usize, longest: usize) -> usize {
        let from = self.space.saturating_sub(longest);
        let from = self.text.floor_char_boundary(from);
        let trimmed = self.text[from..end].trim_end().len();
        let is_space = trimmed == 0;
        self.space = self.text.len();
        if is_space { 0 } else { from + trimmed }
    }
}
