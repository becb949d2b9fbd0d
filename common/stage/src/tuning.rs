//! What the engine measured on this machine, kept for the next process.

use std::io;
use std::path::Path;

use cake_engine::{cpu_tier, set_tuning, tuning};
use cake_proto::VERSION;

/// The file in a program's own directory.
const FILE: &str = "tuning";

/// Makes the engine compute with what [`keep_tuning`] wrote into this directory, if it was on such a `processor`, by such
/// instructions and by this version. Otherwise the engine measures anew, as it does if the file says nothing.
pub fn recall_tuning(directory: &Path, processor: &str) {
    let kept = std::fs::read_to_string(directory.join(FILE)).ok();
    let kept = kept.as_deref().and_then(|text| text.strip_prefix(&*whose(processor)));
    if let Some(kept) = kept.and_then(|text| text.trim_end().parse().ok()) {
        set_tuning(kept);
    }
}

/// Keeps what the engine measured, if it has, in this directory.
///
/// # Errors
/// What the system says. A file that was half written says nothing.
pub fn keep_tuning(directory: &Path, processor: &str) -> io::Result<()> {
    let Some(tuning) = tuning() else { return Ok(()) };
    let (path, text) = (directory.join(FILE), format!("{}{tuning}\n", whose(processor)));
    match std::fs::read_to_string(&path) {
        Ok(kept) if kept == text => Ok(()),
        _ => std::fs::write(path, text),
    }
}

/// The first line of the file: what all of it holds for.
fn whose(processor: &str) -> String {
    let tier = cpu_tier().unwrap_or("another");
    format!("{processor}, {tier}, cake {VERSION}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_holds_for_such_a_machine_alone() {
        let directory = std::env::temp_dir().join(format!("cake-tuning-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        keep_tuning(&directory, "here").expect("nothing to write");
        recall_tuning(&directory, "here");
        assert_eq!(tuning(), None);
        let write = |text: String| std::fs::write(directory.join(FILE), text).expect("written");
        for text in [String::new(), whose("elsewhere") + "none\n", whose("here") + "perhaps\n"] {
            write(text);
            recall_tuning(&directory, "here");
            assert_eq!(tuning(), None);
        }
        write(whose("here") + "none\n");
        recall_tuning(&directory, "here");
        assert_eq!(tuning().map(|tuning| tuning.to_string()).as_deref(), Some("none"));
        write(String::new());
        keep_tuning(&directory, "here").expect("written");
        let kept = std::fs::read_to_string(directory.join(FILE)).expect("there");
        assert_eq!(kept, whose("here") + "none\n");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
