//! A layer of 24 GiB, the largest in use: planned, pushed over gRPC, and computed with by a worker whose machine may
//! have less memory. Its weights are zeros, which are holes in the files on both sides: only their number matters here,
//! and the disk is not what is measured.
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cake_checkpoint::MAX_MANIFEST_BYTES;
use cake_checkpoint::units::format_bytes;
use cake_tests::model::{self, Experts, ModelShape};
use cake_tests::process::{peak_bytes, status_bytes};
use cake_tests::{CountingProxy, HeldBlobs, Master, TestWorker, WorkerOptions};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{Ask, Run};
use super::fill::memory_bytes;
use super::lab::Lab;
use super::table::{Measured, Table};

/// What is asked of it.
pub(crate) const BAR: &str = "completes; ≤ 1.01; manifest ≤ 16 MiB";
/// More than the layer and what a step over it takes; the machine may have less.
const OFFER: u64 = 26 << 30;
/// Bytes on the wire ÷ bytes of tensors, both ways.
const WIRE: f64 = 1.01;
/// Most that the master may take.
const MASTER_BYTES: u64 = 150 << 20;
const TOKENS: usize = 2;
/// How often the worker's memory is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// One layer with as many experts as a layer may have, each with 6 MiB in three matrices.
fn shape() -> ModelShape {
    let experts = Experts { count: 4096, chosen: 8, inner_size: 512 };
    ModelShape { layers: 1, experts: Some(experts), vocab_size: 384, ..ModelShape::qwen3_moe_4b() }
}

/// Plans, pushes and runs it.
pub(crate) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    // The holes take nothing, but a master asks for a disk on which they would have room.
    lab.need_disk(shape().bytes())?;
    let place = Place::start(lab)?;
    let over = AtomicBool::new(false);
    let (outcome, anonymous) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| most_anonymous(place.worker.pid(), &over));
        // However it ends: the harness panics where something fails.
        let end = End(&over);
        let outcome = place.push(table).and_then(|beside| Ok((beside, place.run()?)));
        drop(end);
        (outcome, watch.join().expect("it does not panic"))
    });
    let (beside, run) = outcome?;
    place.answered(&run, table)?;
    place.took(anonymous.context("the worker is gone")?, beside, table)
}

/// Says that it is over when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The most anonymous memory that a process has until this is over; `None` if it ends before.
fn most_anonymous(pid: u32, over: &AtomicBool) -> Option<u64> {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        most = most.max(status_bytes(pid, "RssAnon:")?);
        std::thread::sleep(LOOK);
    }
    Some(most)
}

/// The model, a worker, and a master that reaches it through a proxy that counts.
struct Place {
    model: PathBuf,
    worker: TestWorker,
    proxy: CountingProxy,
    master: Master,
    _home: TempDir,
}

impl Place {
    fn start(lab: &Lab) -> Result<Place> {
        let home = lab.scratch()?;
        let model = home.path().join("model");
        model::make_hollow(&model, &shape())?;
        // The last byte is there, or it would be refused as a model of which only headers are.
        let file = File::options().write(true).open(model.join("model.safetensors"))?;
        file.write_all_at(&[0], file.metadata()?.len() - 1)?;
        let worker = TestWorker::start(
            "wide",
            WorkerOptions {
                memory: OFFER,
                threads: 2,
                directory: Some(home.path().to_owned()),
                ..WorkerOptions::default()
            },
        );
        let proxy = CountingProxy::start(&worker.address);
        let master = Master::at([proxy.address.clone()]);
        Ok(Place { model, worker, proxy, master, _home: home })
    }

    /// Returns what the plan gives the worker beside the weights (bytes).
    fn push(&self, table: &mut Table) -> Result<u64> {
        let crossed = || self.proxy.to_worker() + self.proxy.to_master();
        // What planning sends to time the link is no part of the push.
        let plan = Ask::new("plan", &self.model).with(&self.master)?;
        let before = crossed();
        let push = Ask::new("push", &self.model).with(&self.master)?;
        let (wire, tensors) = (crossed() - before, shape().layer_bytes());
        let (planned, pushed) = (plan.seconds, push.seconds);
        let words =
            format!("{wire} of {tensors} B; planned in {planned:.1} s, pushed in {pushed:.1} s");
        table.at_most(
            "wide: bytes on the wire, both ways ÷ tensor bytes of a layer of 24 GiB",
            Measured::ratio(wire as f64 / tensors as f64, &words),
            WIRE,
            "≤ 1.01",
        );
        let held = HeldBlobs::of(self.worker.store());
        ensure!(held.partial.is_empty() && held.whole.len() == 1, "the push left {held:?}");
        let (blob, bytes) = &held.whole[0];
        let manifest = std::fs::metadata(blob.with_extension("json"))?.len();
        let disk = format_bytes(std::fs::metadata(blob)?.blocks() * 512);
        let words = format!(
            "{} for a blob of {}, which takes {disk} of disk",
            format_bytes(manifest),
            format_bytes(*bytes)
        );
        table.at_most(
            "wide: its manifest",
            Measured::new(manifest as f64, words),
            MAX_MANIFEST_BYTES as f64,
            "≤ 16 MiB",
        );
        let peak = push.finished.peak_bytes;
        table.at_most(
            "wide: VmHWM of the master that pushes it",
            Measured::new(peak as f64, format_bytes(peak)),
            MASTER_BYTES as f64,
            "≤ 150 MiB",
        );
        beside_weights(&plan.json()?)
    }

    fn run(&self) -> Result<Run> {
        let tokens = TOKENS.to_string();
        let sample = ["--max-tokens", &tokens, "--temperature", "0", "--ignore-eos"];
        let ask = Ask::new("run", &self.model).and(&["--prompt-ids", "1,2,3"]).and(&sample);
        ask.with(&self.master)
    }

    fn answered(&self, run: &Run, table: &mut Table) -> Result<()> {
        let report = run.json()?;
        let answered = report["output_ids"].as_array().map_or(0, Vec::len);
        let pushed = report["pushed_bytes"].as_u64().context("no pushed_bytes")?;
        let words = format!(
            "{answered} tokens, {pushed} B pushed again, {:.1} s with the load",
            run.seconds
        );
        table.judged(
            "wide: a run on it",
            Measured::new(answered as f64, words),
            "completes",
            answered == TOKENS && pushed == 0,
        );
        Ok(())
    }

    /// What the worker took at the peak that is of no file.
    fn took(&self, anonymous: u64, beside: u64, table: &mut Table) -> Result<()> {
        let peak = peak_bytes(self.worker.pid()).context("the worker is gone")?;
        let words = format!(
            "{} of {} planned beside the weights, VmHWM {}",
            format_bytes(anonymous),
            format_bytes(beside),
            format_bytes(peak)
        );
        let what = "wide: the worker's anonymous memory at the peak";
        let measured = Measured::new(anonymous as f64, words);
        // Where there is the memory for a copy of the weights, there may be one.
        if memory_bytes("MemTotal")? > shape().layer_bytes() {
            table.inform(what, measured);
        } else {
            table.at_most(what, measured, beside as f64, "≤ planned beside the weights");
        }
        Ok(())
    }
}

fn beside_weights(report: &Value) -> Result<u64> {
    let memory = &report["plan"]["stages"][0]["memory"];
    let part = |name: &str| memory[name].as_u64().with_context(|| format!("no {name} in the plan"));
    Ok(part("kv")? + part("state")? + part("scratch")? + part("overhead")?)
}
