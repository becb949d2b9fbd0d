//! Which workers a person means: arguments, an environment variable, or a cluster file.
use std::path::{Path, PathBuf};

/// Largest cluster file read.
const FILE_BYTES: u64 = 1 << 20;

/// A cluster file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not there, not readable.
    #[error("cannot read the cluster file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Much larger than any list of workers.
    #[error("the cluster file {path} has {bytes} bytes, expected at most {FILE_BYTES}")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A line that is no address.
    #[error("{path}, line {line}: expected HOST:PORT, found {found:?}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        found: String,
    },
}

/// All addresses given, in order, each once.
///
/// # Errors
/// [`Error`] of the cluster file.
pub fn gather(workers: &[String], file: Option<&Path>) -> Result<Vec<String>, Error> {
    let mut all: Vec<String> = Vec::new();
    let typed = workers.iter().flat_map(|list| list.split(',')).map(|one| one.trim().to_owned());
    all.extend(typed.filter(|address| !address.is_empty()));
    if let Some(path) = file {
        all.extend(read(path)?);
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|address| seen.insert(address.clone()));
    Ok(all)
}

/// One HOST:PORT per line; `#` begins a comment.
fn read(path: &Path) -> Result<Vec<String>, Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES {
        return Err(Error::TooLong { path: path.to_owned(), bytes });
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    parse(&text).map_err(|(line, found)| Error::Line { path: path.to_owned(), line, found })
}

fn parse(text: &str) -> Result<Vec<String>, (usize, String)> {
    let mut addresses = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let address = line.split('#').next().unwrap_or("").trim();
        if address.is_empty() {
            continue;
        }
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                addresses.push(address.to_owned());
            }
            _ => return Err((index + 1, address.to_owned())),
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_address_a_line_and_comments() {
        let text = "# kitchen\n192.168.1.7:7117 # tablet\n\n[::1]:7118\n";
        assert_eq!(parse(text), Ok(vec!["192.168.1.7:7117".into(), "[::1]:7118".into()]));
        assert_eq!(parse("ok:1\nphone"), Err((2, "phone".into())));
    }

    #[test]
    fn an_address_given_twice_is_one_worker() {
        let workers = ["a:1,b:2".to_owned(), "a:1".to_owned()];
        assert_eq!(gather(&workers, None).expect("no file"), ["a:1", "b:2"]);
    }
}
