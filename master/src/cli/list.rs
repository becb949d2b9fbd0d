//! `cake-master list`: which models of the Hub are here.
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cake_checkpoint::hub_caches;
use cake_checkpoint::units::format_bytes;
use cake_hub::{CachedModel, CachedRevision};
use serde::Serialize;

use super::{Error, out, report};
use crate::cluster::ago_text;

/// How many digits of a commit people are shown.
const DIGITS: usize = 12;

/// Arguments of `list`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// A model, for programs.
#[derive(Serialize)]
struct Line {
    model: String,
    path: PathBuf,
    /// On the disk.
    bytes: u64,
    /// Files that are not all there, and their bytes on the disk.
    partial_files: usize,
    partial_bytes: u64,
    /// Since 1970.
    last_used_seconds: Option<u64>,
    revisions: Vec<RevisionLine>,
}

#[derive(Serialize)]
struct RevisionLine {
    commit: String,
    refs: Vec<String>,
    files: usize,
    bytes: u64,
}

impl Args {
    /// Looks, and prints.
    pub(super) fn run(self) -> Result<(), Error> {
        let caches = hub_caches();
        let models: Vec<CachedModel> =
            caches.iter().flat_map(|cache| cake_hub::list(cache)).collect();
        if self.json {
            return report::print_json(&models.into_iter().map(Line::from).collect::<Vec<_>>());
        }
        if models.is_empty() {
            let looked: Vec<String> =
                caches.iter().map(|cache| cache.display().to_string()).collect();
            return out::line(format_args!(
                "no model is here (looked in {}): `cake-master pull ORG/NAME` brings one",
                looked.join(", ")
            ));
        }
        out::text(table(&models, SystemTime::now()))
    }
}

impl From<CachedModel> for Line {
    fn from(model: CachedModel) -> Self {
        let seconds =
            |time: SystemTime| time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
        let line = |revision| {
            let CachedRevision { commit, refs, files, bytes } = revision;
            RevisionLine { commit, refs, files, bytes }
        };
        Line {
            model: model.repo,
            path: model.path,
            bytes: model.bytes,
            partial_files: model.partial_files,
            partial_bytes: model.partial_bytes,
            last_used_seconds: model.last_used.and_then(seconds),
            revisions: model.revisions.into_iter().map(line).collect(),
        }
    }
}

/// A line for each model.
fn table(models: &[CachedModel], now: SystemTime) -> String {
    let width = models.iter().map(|model| model.repo.len()).max().unwrap_or(0).max(5);
    let line = |cells: [&str; 4]| {
        let [model, disk, used, revisions] = cells;
        format!("{model:<width$}  {disk:>9}  {used:<22}  {revisions}\n")
    };
    let lines = models.iter().map(|model| {
        let ago = |time| ago_text(now.duration_since(time).unwrap_or_default());
        let used = model.last_used.map_or("not known".to_owned(), ago);
        line([&model.repo, &format_bytes(model.bytes), &used, &revisions(model)])
    });
    [line(["model", "on disk", "last used", "revisions"])].into_iter().chain(lines).collect()
}

/// What there is of a model, in a few words.
fn revisions(model: &CachedModel) -> String {
    let revision = |revision: &CachedRevision| {
        let commit = revision.commit.get(..DIGITS).unwrap_or(&revision.commit);
        match revision.refs.is_empty() {
            true => commit.to_owned(),
            false => format!("{} ({commit})", revision.refs.join(", ")),
        }
    };
    let partial = (model.partial_files > 0).then(|| {
        let (files, bytes) = (model.partial_files, format_bytes(model.partial_bytes));
        format!("{files} unfinished ({bytes}): `cake-master pull {}` goes on", model.repo)
    });
    let said: Vec<String> = model.revisions.iter().map(revision).chain(partial).collect();
    if said.is_empty() { "none".to_owned() } else { said.join("; ") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_model_is_a_line() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let revision = |digit: &str, refs: &[&str]| CachedRevision {
            commit: digit.repeat(40),
            refs: refs.iter().map(|name| (*name).to_owned()).collect(),
            files: 3,
            bytes: 9,
        };
        let model = CachedModel {
            repo: "org/tiny".into(),
            path: "/cache/models--org--tiny".into(),
            bytes: 3 << 30,
            partial_files: 1,
            partial_bytes: 1 << 20,
            last_used: Some(now - Duration::from_secs(7200)),
            revisions: vec![revision("a", &["main", "v1"]), revision("b", &[])],
        };
        let table = table(&[model], now);
        assert_eq!(
            table.lines().nth(1),
            Some(
                "org/tiny      3 GiB  2 h ago                 main, v1 (aaaaaaaaaaaa); bbbbbbbbbbbb; \
                 1 unfinished (1 MiB): `cake-master pull org/tiny` goes on"
            )
        );
    }
}
