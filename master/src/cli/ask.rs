//! Questions that a person answers with yes or no.
use std::io::{IsTerminal, Write};

use super::out;

/// Whether there is somebody to be asked.
pub(super) fn somebody() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks; anything but yes is no.
pub(super) async fn yes(question: String) -> bool {
    // On a thread that may be left behind: Ctrl-C ends the program, not the read.
    let asked = tokio::task::spawn_blocking(move || {
        let mut stderr = std::io::stderr().lock();
        write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).ok()?;
        drop(stderr);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).ok()?;
        Some(line)
    });
    let line = asked.await.ok().flatten();
    if line.as_ref().is_none_or(|line| !line.ends_with('\n')) {
        out::note(""); // Nobody ended the line.
    }
    line.is_some_and(|line| is_yes(&line))
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for line in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(line), "{line:?}");
        }
        for line in ["", "\n", "n\n", "yess\n", "ok\n"] {
            assert!(!is_yes(line), "{line:?}");
        }
    }
}
