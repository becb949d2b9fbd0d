//! Standard output and standard error of the commands. Whoever reads them may have seen enough: then
//! a command ends quietly, and nothing panics.
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::time::Duration;

use super::Error;

/// How long the program's last words may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where a command tells how it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    /// Nowhere.
    Nobody,
    /// Standard error: beside an answer.
    Notes,
    /// Standard output: it is what was asked for.
    Output,
}

impl Tell {
    /// One line.
    ///
    /// # Errors
    /// As [`line()`].
    pub(super) fn line(self, words: impl Display) -> Result<(), Error> {
        match self {
            Self::Nobody => Ok(()),
            Self::Notes => {
                note(words);
                Ok(())
            }
            Self::Output => line(words),
        }
    }
}

/// A line on standard output.
///
/// # Errors
/// As [`text()`].
pub(super) fn line(words: impl Display) -> Result<(), Error> {
    text(format_args!("{words}\n"))
}

/// Text on standard output, shown at once.
///
/// # Errors
/// [`Error::OutputClosed`] if nobody reads any more, [`Error::Output`] if it cannot be written.
pub(super) fn text(words: impl Display) -> Result<(), Error> {
    patiently(|| write_to(&mut std::io::stdout().lock(), words))
}

/// A line on standard error. If nobody reads it, nothing is lost but the line.
pub(super) fn note(words: impl Display) {
    patiently(|| writeln!(std::io::stderr().lock(), "{words}").ok());
}

/// Does what may have to wait for whoever reads, on a thread that nobody else waits for.
pub(super) fn patiently<T>(write: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(write)
}

/// Says the last words of the program, for [`LAST_WORDS`] at most: a thread that is stuck in the middle of a line, as
/// nobody reads it, may hold the output's lock.
pub(super) fn last(words: impl FnOnce() + Send + 'static) {
    let (said, told) = std::sync::mpsc::channel();
    let say = move || {
        words();
        said.send(()).ok();
    };
    std::thread::Builder::new().spawn(say).ok(); // Without room for a thread nothing is said.
    told.recv_timeout(LAST_WORDS).ok();
}

fn write_to(out: &mut impl Write, words: impl Display) -> Result<(), Error> {
    let written = write!(out, "{words}").and_then(|()| out.flush());
    written.map_err(|source| match source.kind() {
        ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::Output { source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_that_cannot_be_said_hold_up_nothing() {
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            last(move || assert!(held.recv().is_err(), "nothing is sent"));
            tell.send(()).ok();
        });
        let end = told.recv_timeout(30 * LAST_WORDS);
        drop(let_go);
        assert!(end.is_ok(), "{end:?}");
    }

    /// Takes nothing.
    struct Refusing(ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        let closed = write_to(&mut Refusing(ErrorKind::BrokenPipe), "a").expect_err("refused");
        assert!(matches!(closed, Error::OutputClosed), "{closed}");
        let full = write_to(&mut Refusing(ErrorKind::StorageFull), "a").expect_err("refused");
        assert!(matches!(full, Error::Output { .. }), "{full}");
        let mut written = Vec::new();
        write_to(&mut written, format_args!("{}\n", 7)).expect("a vector takes all");
        assert_eq!(written, b"7\n");
    }
}
