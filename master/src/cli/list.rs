//! `cake-master list`: which models are here, of the Hub and of other programs.
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{KeptModel, Location, hub_caches, kept};
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
    /// The program that keeps it; `null` for what is in the Hub's cache.
    kept_by: Option<&'static str>,
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
        let kept: Vec<Line> = kept().into_iter().map(Line::from).collect();
        if self.json {
            let lines = models.into_iter().map(Line::from).chain(kept);
            return report::print_json(&lines.collect::<Vec<_>>());
        }
        if models.is_empty() && kept.is_empty() {
            let looked: Vec<String> =
                caches.iter().map(|cache| cache.display().to_string()).collect();
            return out::line(format_args!(
                "no model is here (looked in {}, and for what Ollama and LM Studio keep): `cake-master pull ORG/NAME` brings one",
                looked.join(", ")
            ));
        }
        out::text(table(&models, &kept, SystemTime::now()))
    }
}

/// Since 1970.
fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// A file, or what lies in a directory.
fn files(path: &Path) -> Vec<Metadata> {
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| entry.path().metadata().ok()).collect(),
        Err(_) => path.metadata().into_iter().collect(),
    }
}

impl From<KeptModel> for Line {
    fn from(KeptModel { model, program, location: Location { path, .. } }: KeptModel) -> Self {
        let files = files(&path);
        let used =
            files.iter().filter_map(|file| Some(file.accessed().ok()?.max(file.modified().ok()?)));
        Line {
            model,
            kept_by: Some(program),
            bytes: files.iter().filter(|file| file.is_file()).map(Metadata::len).sum(),
            partial_files: 0,
            partial_bytes: 0,
            last_used_seconds: used.max().and_then(seconds),
            revisions: Vec::new(),
            path,
        }
    }
}

impl From<CachedModel> for Line {
    fn from(model: CachedModel) -> Self {
        let line = |revision| {
            let CachedRevision { commit, refs, files, bytes } = revision;
            RevisionLine { commit, refs, files, bytes }
        };
        Line {
            model: model.repo,
            kept_by: None,
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
fn table(models: &[CachedModel], kept: &[Line], now: SystemTime) -> String {
    let names = models.iter().map(|model| &model.repo).chain(kept.iter().map(|line| &line.model));
    let width = names.map(String::len).max().unwrap_or(0).max(5);
    let ago = |time| ago_text(now.duration_since(time).unwrap_or_default());
    let ago = |used: Option<SystemTime>| used.map_or("not known".to_owned(), ago);
    let line = |cells: [&str; 4]| {
        let [model, disk, used, revisions] = cells;
        format!("{model:<width$}  {disk:>9}  {used:<22}  {revisions}\n")
    };
    let lines = models.iter().map(|model| {
        let used = ago(model.last_used);
        line([&model.repo, &format_bytes(model.bytes), &used, &revisions(model)])
    });
    let kept = kept.iter().map(|one| {
        let used = one.last_used_seconds.map(|since| UNIX_EPOCH + Duration::from_secs(since));
        let by = format!("kept by {}", one.kept_by.unwrap_or_default());
        line([&one.model, &format_bytes(one.bytes), &ago(used), &by])
    });
    let head = line(["model", "on disk", "last used", "what there is"]);
    [head].into_iter().chain(lines).chain(kept).collect()
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
        let kept = Line {
            model: "ollama:tiny".into(),
            kept_by: Some("Ollama"),
            path: "/models/tiny".into(),
            bytes: 1 << 20,
            partial_files: 0,
            partial_bytes: 0,
            last_used_seconds: seconds(now - Duration::from_secs(7200)),
            revisions: Vec::new(),
        };
        let table = table(&[model], &[kept], now);
        assert_eq!(
            table.lines().nth(1),
            Some(
                "org/tiny         3 GiB  2 h ago                 main, v1 (aaaaaaaaaaaa); bbbbbbbbbbbb; \
                 1 unfinished (1 MiB): `cake-master pull org/tiny` goes on"
            )
        );
        let kept = table.lines().nth(2);
        assert_eq!(kept, Some("ollama:tiny      1 MiB  2 h ago                 kept by Ollama"));
    }
}
