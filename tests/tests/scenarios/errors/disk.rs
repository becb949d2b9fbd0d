//! Stores that cannot be written, are taken, or have no room.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::process::DEADLINE;
use cake_tests::{
    CountingProxy, HeldBlobs, Master, ModelShape, Running, TestWorker, WorkerOptions, model,
    not_shown, programs,
};
use tempfile::TempDir;

use super::assert_says;

const LIMIT: Duration = Duration::from_secs(120);

#[track_caller]
fn refusal_of_store(store: &Path) -> String {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(&programs().worker);
    let store = path(store);
    command.args(["--listen", "127.0.0.1:0", "--memory", "1GiB", "--store", &store]);
    Running::start(command.current_dir(home.path())).finish(DEADLINE).refusal()
}

#[test]
fn a_store_below_a_file() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("file");
    std::fs::write(&file, "not a directory").expect("written");
    assert_says(&refusal_of_store(&file.join("store")), &[&path(&file)]);
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "not a directory");
}

#[test]
fn a_store_that_another_worker_has() {
    let worker = TestWorker::new("a");
    let sentence = refusal_of_store(worker.store());
    assert_says(&sentence, &["in use", &format!("process {}", worker.pid())]);
}

/// A file system in memory of so many MiB; unmounted when dropped.
struct SmallDisk {
    home: TempDir,
}

impl SmallDisk {
    /// `None`, and why, where none can be mounted.
    fn new(mebibytes: u64) -> Option<Self> {
        let home = TempDir::with_prefix("cake-disk-").expect("a temporary folder");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "none"])
            .arg(home.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self { home }),
            Ok(output) => {
                not_shown(format!("no small disk: {}", String::from_utf8_lossy(&output.stderr)));
                None
            }
            Err(error) => {
                not_shown(format!("no small disk: mount: {error}"));
                None
            }
        }
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    /// A file that leaves so many bytes free, whoever else writes meanwhile.
    fn fill(&self, leave_bytes: u64) -> PathBuf {
        let path = self.home.path().join("filler");
        let mut file = File::create(&path).expect("made");
        loop {
            let room = rustix::fs::statvfs(self.home.path()).expect("a mounted file system");
            let bytes = (room.f_bavail * room.f_frsize).saturating_sub(leave_bytes);
            if bytes == 0 {
                return path;
            }
            file.write_all(&vec![1; bytes.min(1 << 20) as usize]).expect("there is room");
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.home.path()).status().ok();
    }
}

fn worker_on(disk: &SmallDisk) -> TestWorker {
    let store = Some(disk.store());
    TestWorker::start("tablet", WorkerOptions { store, ..WorkerOptions::default() })
}

fn small_model() -> TempDir {
    let home = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("written");
    home
}

#[test]
fn a_disk_too_small_is_told_before_anything_is_sent() {
    let Some(disk) = SmallDisk::new(32) else { return };
    let (worker, model) = (worker_on(&disk), small_model());
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([&proxy.address]);
    master.run(&["plan", &path(model.path())]).success();
    proxy.reset();
    let sentence = master.run(&["push", &path(model.path()), "--json"]).refusal();
    assert_says(&sentence, &["tablet", "disk", "MiB"]);
    assert!(proxy.to_worker() < 1 << 20, "{} bytes were sent", proxy.to_worker());
    assert_eq!(HeldBlobs::of(worker.store()), HeldBlobs::default());
}

#[test]
fn a_disk_that_fills_up_during_a_push_loses_nothing() {
    let Some(disk) = SmallDisk::new(160) else { return };
    let (worker, model) = (worker_on(&disk), small_model());
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([&proxy.address]);
    let total = ModelShape::small().layer_bytes() * ModelShape::small().layers as u64;
    proxy.hold_at(total / 2);
    let pushing = master.start(&["push", &path(model.path()), "--json"]);
    proxy.wait_for(total / 2, LIMIT);
    let filler = disk.fill(2 << 20);
    proxy.heal();
    let sentence = pushing.finish(LIMIT).refusal();
    assert_says(&sentence, &["tablet", "no room on the disk"]);
    let before = HeldBlobs::at_rest(&worker);
    assert!(before.whole.len() >= 2, "what was whole stays: {before:?}");
    std::fs::remove_file(filler).expect("removed");
    let report = master.push(model.path(), &[]);
    let sent = report["pushed"][0]["pushed_bytes"].as_u64().expect("bytes");
    assert!(sent < total, "{sent} of {total} bytes: everything was sent again");
    let alone = Master::alone().answer_of(model.path(), &[1, 2, 3], 4, &[], &[]);
    let answer = master.answer_of(model.path(), &[1, 2, 3], 4, &[], &[]);
    assert_eq!(answer.logprob_bits, alone.logprob_bits);
}
