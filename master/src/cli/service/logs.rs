//! `cake-master logs`: what happened lately, in words.
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;

use super::super::{Error, out};
use super::ServiceArgs;
use crate::chronicle::Entry;

/// How often a service is asked again.
const EVERY: Duration = Duration::from_millis(500);

/// Arguments of `logs`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    /// Go on with what happens from now on, until the service ends or Ctrl-C.
    #[arg(short, long, help_heading = "Output")]
    follow: bool,
    /// Print a JSON object on each line.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// What `/api/log` answers.
#[derive(Debug, Deserialize)]
struct Log {
    entries: Vec<Entry>,
    /// The number of the latest.
    #[serde(default)]
    last: Option<u64>,
}

impl Args {
    /// Prints a line for each thing that happened.
    pub(in crate::cli) async fn run(self) -> Result<(), Error> {
        let service = self.service.service()?;
        let mut last = 0;
        loop {
            let Log { entries, last: latest } = service.get(&format!("/api/log?after={last}"))?;
            if latest.is_some_and(|latest| latest < last) {
                last = 0; // The service began anew.
                continue;
            }
            for entry in &entries {
                out::line(match self.json {
                    true => serde_json::json!(entry).to_string(),
                    false => text(entry),
                })?;
                last = entry.number;
            }
            if !self.follow {
                return Ok(());
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

fn text(entry: &Entry) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(entry.at_ms)).unwrap_or(UNIX_EPOCH);
    let words: String = entry.words.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    let time = humantime::format_rfc3339_seconds(at);
    format!("{time}  {:<7}  {}", entry.kind.name(), words.replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chronicle::Kind;

    #[test]
    fn an_entry_is_a_line_that_no_terminal_obeys() {
        let words = "\"attic\u{1b}[2J\" is lost\nand more".to_owned();
        let entry = Entry { number: 1, at_ms: 1_000, kind: Kind::Worker, words };
        assert_eq!(text(&entry), "1970-01-01T00:00:01Z  worker   \"attic[2J\" is lost; and more");
    }
}
