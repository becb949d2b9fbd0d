//! What `cake-worker store list` and `cake-worker store prune` print.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cake_checkpoint::units::format_bytes;
use serde_json::json;

use super::folders::{Contents, Folders};
use super::{Error, HeldBlob, PartialBlob, PruneReport, Store};

/// Hexadecimal digits of a digest shown to people.
const SHORT_DIGITS: usize = 12;

/// What an open store holds, as a table or as JSON.
pub fn list(store: &Store, json: bool) -> String {
    let contents = Contents { held: store.list(), partial: store.list_partial() };
    render(&contents, SystemTime::now(), json)
}

/// What the store at `dir` holds, as a table or as JSON. Changes nothing and takes no lock, so a
/// worker may be running on it.
///
/// # Errors
/// [`Error::Io`] if its folders cannot be listed. A directory without a store is an empty store.
pub fn list_directory(dir: &Path, json: bool) -> Result<String, Error> {
    Ok(render(&Folders::new(dir).survey()?, SystemTime::now(), json))
}

/// Removes what was not used lately until at most `keep` bytes are stored, and says what went.
///
/// # Errors
/// As [`Store::prune`].
pub fn prune(store: &Store, keep: u64, json: bool) -> Result<String, Error> {
    let report = store.prune(keep)?;
    Ok(if json { prune_json(&report) } else { prune_text(&report) })
}

fn render(contents: &Contents, now: SystemTime, json: bool) -> String {
    let mut contents = Contents { held: contents.held.clone(), partial: contents.partial.clone() };
    contents.held.sort_by(|a, b| (&a.label, a.name).cmp(&(&b.label, b.name)));
    contents.held.sort_by_key(|blob| trailing_number(&blob.label));
    if json { list_json(&contents) } else { list_text(&contents, now) }
}

/// The layer number that a label ends with, so that layer 10 comes after layer 9.
fn trailing_number(label: &str) -> Option<u64> {
    label.rsplit('.').next()?.parse().ok()
}

fn list_text(contents: &Contents, now: SystemTime) -> String {
    if contents.held.is_empty() && contents.partial.is_empty() {
        return "the store is empty\n".to_owned();
    }
    let mut rows = vec![["BLOB", "SIZE", "TENSORS", "LAST USED", "CONTENT"].map(str::to_owned)];
    for blob in &contents.held {
        rows.push([
            short(&blob.name.to_string()),
            format_bytes(blob.bytes),
            blob.tensors.to_string(),
            if blob.in_use { "in use".to_owned() } else { ago(now, blob.last_used) },
            blob.label.clone(),
        ]);
    }
    for blob in &contents.partial {
        rows.push([
            short(&blob.name.to_string()),
            format_bytes(blob.bytes),
            String::new(),
            ago(now, blob.last_used),
            "(partial, resumed by the next push)".to_owned(),
        ]);
    }
    let mut text = table(&rows);
    let held_bytes = contents.held.iter().map(|blob| blob.bytes).fold(0, u64::saturating_add);
    let _ = writeln!(text, "{}, {}", count(contents.held.len(), "blob"), format_bytes(held_bytes));
    text
}

fn list_json(contents: &Contents) -> String {
    let held: Vec<_> = contents.held.iter().map(held_json).collect();
    let partial: Vec<_> = contents.partial.iter().map(partial_json).collect();
    format!("{:#}\n", json!({ "blobs": held, "partial": partial }))
}

fn prune_text(report: &PruneReport) -> String {
    let removed = report.removed.len() + report.removed_partial.len();
    if removed == 0 {
        return format!("nothing to remove; {} kept\n", format_bytes(report.kept_bytes));
    }
    let mut text = String::new();
    for blob in &report.removed {
        let (name, size) = (short(&blob.name.to_string()), format_bytes(blob.bytes));
        let _ = writeln!(text, "removed {name}  {size}  {}", blob.label);
    }
    for blob in &report.removed_partial {
        let (name, size) = (short(&blob.name.to_string()), format_bytes(blob.bytes));
        let _ = writeln!(text, "removed {name}  {size}  (partial)");
    }
    let (freed, kept) = (format_bytes(report.freed_bytes), format_bytes(report.kept_bytes));
    let _ = writeln!(text, "{} removed, {freed} freed, {kept} kept", count(removed, "blob"));
    text
}

fn prune_json(report: &PruneReport) -> String {
    let removed: Vec<_> = report.removed.iter().map(held_json).collect();
    let removed_partial: Vec<_> = report.removed_partial.iter().map(partial_json).collect();
    let object = json!({
        "removed": removed,
        "removed_partial": removed_partial,
        "freed_bytes": report.freed_bytes,
        "kept_bytes": report.kept_bytes,
    });
    format!("{object:#}\n")
}

fn held_json(blob: &HeldBlob) -> serde_json::Value {
    json!({
        "blob": blob.name.to_string(),
        "bytes": blob.bytes,
        "content": blob.label,
        "tensors": blob.tensors,
        "last_used_unix_seconds": unix_seconds(blob.last_used),
        "in_use": blob.in_use,
    })
}

fn partial_json(blob: &PartialBlob) -> serde_json::Value {
    json!({
        "blob": blob.name.to_string(),
        "bytes": blob.bytes,
        "last_used_unix_seconds": unix_seconds(blob.last_used),
    })
}

/// Rows with their columns aligned; sizes and counts to the right.
fn table(rows: &[[String; 5]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (blob, size, tensors, used) = (width(0), width(1), width(2), width(3));
    let mut text = String::new();
    for [name, bytes, number, last, content] in rows {
        let _ = writeln!(
            text,
            "{name:blob$}  {bytes:>size$}  {number:>tensors$}  {last:used$}  {content}"
        );
    }
    text
}

fn short(name: &str) -> String {
    name.chars().take(SHORT_DIGITS).collect()
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// How long ago, in the largest unit that fits. A clock set back makes it now.
fn ago(now: SystemTime, then: SystemTime) -> String {
    let seconds = now.duration_since(then).unwrap_or(Duration::ZERO).as_secs();
    let (number, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", count(usize::try_from(number).unwrap_or(usize::MAX), unit))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TestBlob, receive};
    use super::*;

    #[test]
    fn lists_layers_in_order_and_prunes_with_a_summary() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), None).unwrap();
        assert_eq!(list(&store, false), "the store is empty\n");
        for layer in [10, 9] {
            receive(&store, &TestBlob::new(layer, 100));
        }
        let text = list(&store, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("BLOB"), "{text}");
        assert!(lines[1].ends_with("just now   model.layers.9"), "{text}");
        assert!(lines[2].ends_with("model.layers.10"), "{text}");
        assert!(lines[3].starts_with("2 blobs, "), "{text}");
        assert_eq!(list_directory(directory.path(), false).unwrap(), text);

        let object: serde_json::Value = serde_json::from_str(&list(&store, true)).unwrap();
        assert_eq!(object["blobs"][0]["content"], "model.layers.9");
        let text = prune(&store, 0, false).unwrap();
        assert!(text.contains("2 blobs removed"), "{text}");
        let object: serde_json::Value =
            serde_json::from_str(&prune(&store, 0, true).unwrap()).unwrap();
        assert_eq!(object["freed_bytes"], 0);
        let absent = directory.path().join("absent");
        assert_eq!(list_directory(&absent, false).unwrap(), "the store is empty\n");
    }

    #[test]
    fn times_are_said_in_one_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10 * 86_400);
        let before = |seconds| ago(now, now - Duration::from_secs(seconds));
        assert_eq!(before(59), "just now");
        assert_eq!(before(60), "1 minute ago");
        assert_eq!(before(7200), "2 hours ago");
        assert_eq!(before(3 * 86_400), "3 days ago");
        assert_eq!(ago(now, now + Duration::from_secs(5)), "just now");
    }
}
