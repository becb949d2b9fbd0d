//! What crosses the network: nothing but the assigned tensors, once, also after a crash.
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cake_checkpoint::units::format_bytes;
use serde_json::Value;

use super::cluster::{Ask, Pair, Ways};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::table::{Measured, Table};

/// One piece of a blob: what a blob under way may have to repeat, and more than all messages of a
/// short answer.
const PIECE: u64 = 1 << 20;
/// Most of the weights' bytes that a master may read when nothing is to be pushed.
const READS: f64 = 0.01;
/// When nothing was written to a store for so long, nothing more is coming.
const CALM: Duration = Duration::from_millis(300);
const DEADLINE: Duration = Duration::from_secs(60);

/// Bytes of a first push, of a second run, and of a plan moved by one layer.
pub(crate) fn minimal_and_once(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    let tensors = one_b().layer_bytes() * one_b().layers as u64;
    lab.need_disk(tensors * 5 / 4)?;
    let pair = Pair::start(lab, Ways::Counted)?;

    pair.run(&Ask::new("push", &model).cut(CUT, &one_b()))?;
    let wire = pair.wire().total();
    let made_of = format!("{wire} of {tensors} B");
    table.at_most(
        "minimal: bytes on the wire, both ways ÷ tensor bytes assigned (1B, 2 workers)",
        Measured::ratio(wire as f64 / tensors as f64, &made_of),
        1.01,
        "≤ 1.01",
    );
    let (blobs, _) = pair.stored();
    table.at_most(
        "minimal: blob files ÷ tensor bytes",
        Measured::ratio(blobs as f64 / tensors as f64, &format!("{blobs} of {tensors} B")),
        1.001,
        "≤ 1.001",
    );

    let first = pair.run(&short_answer(&model))?.json()?;
    again(&pair, &model, &first, table)?;
    moved(&pair, &model, table)
}

/// Little more than loading everything.
fn short_answer(model: &Path) -> Ask {
    Ask::new("run", model).cut(CUT, &one_b()).answer(4, 2)
}

/// A second run, and what the master reads for it.
fn again(pair: &Pair, model: &Path, first: &Value, table: &mut Table) -> Result<()> {
    let part = |bytes: u64| bytes as f64 / one_b().bytes() as f64;
    let bar = "≤ 0.01 of the weights";
    files::warm(model)?;
    let before = pair.wire();
    let second = pair.run(&short_answer(model))?;
    let report = second.json()?;
    ensure!(report["output_ids"] == first["output_ids"], "the second run answers something else");
    let sent = pair.wire().since(before).to_workers;
    let pushed = report["pushed_bytes"].as_u64().context("no pushed_bytes")?;
    table.judged(
        "pushed once: blob bytes of a second run",
        Measured::new(pushed as f64, format!("{pushed} B ({} sent in all)", format_bytes(sent))),
        "0 B, and not one piece (1 MiB) sent",
        pushed == 0 && sent < PIECE,
    );
    let (calls, disk) = (second.finished.read_call_bytes, second.finished.disk_read_bytes);
    let words = format!("{} in read calls, {} from disk", format_bytes(calls), format_bytes(disk));
    table.at_most(
        "pushed once: read by the master of a second run ÷ weights (page cache warm)",
        Measured::ratio(part(calls.max(disk)), &words),
        READS,
        bar,
    );
    files::cool(model)?;
    let push = pair.run(&Ask::new("push", model).cut(CUT, &one_b()))?;
    let read = push.finished.read_call_bytes.max(push.finished.disk_read_bytes);
    table.at_most(
        "pushed once: read by the master of a second push ÷ weights (nothing cached)",
        Measured::ratio(part(read), &format_bytes(read)),
        READS,
        bar,
    );
    files::cool(model)?;
    let cold = pair.run(&short_answer(model))?;
    let read = cold.finished.disk_read_bytes;
    table.inform(
        "pushed once: disk reads of a second run ÷ weights (nothing cached)",
        Measured::ratio(part(read), &format!("{}: embedding and head", format_bytes(read))),
    );
    Ok(())
}

/// One layer goes from the second worker to the first.
fn moved(pair: &Pair, model: &Path, table: &mut Table) -> Result<()> {
    let (wire, (blobs, _)) = (pair.wire(), pair.stored());
    pair.run(&Ask::new("push", model).cut(CUT + 1, &one_b()))?;
    let sent = pair.wire().since(wire).to_workers;
    let layer = pair.stored().0 - blobs;
    let words = format!("{sent} B sent for a blob of {layer} B");
    table.at_most(
        "pushed once: plan moved by one layer, bytes sent ÷ that layer's blob",
        Measured::ratio(sent as f64 / layer as f64, &words),
        1.01,
        "≤ 1.01",
    );
    Ok(())
}

/// The master is killed at half of a push and started again.
pub(crate) fn resumes(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    let tensors = one_b().layer_bytes() * one_b().layers as u64;
    lab.need_disk(tensors)?;
    let pair = Pair::start(lab, Ways::Counted)?;
    let push = Ask::new("push", &model).cut(CUT, &one_b());
    let running = pair.begin(&push);
    while pair.wire().to_workers < tensors / 2 {
        let runs = cake_tests::process::alive(running.pid());
        ensure!(runs, "the push ended before half of it was sent: {}", running.stderr());
        std::thread::sleep(Duration::from_millis(1));
    }
    running.kill();
    let there = settled(&pair)?;
    let before = pair.wire();

    pair.run(&push)?;
    let sent = pair.wire().since(before).to_workers;
    let (blobs, _) = pair.stored();
    let missing = blobs - there;
    let more = sent.saturating_sub(missing);
    let words = format!("{} ({sent} B sent, {missing} B were missing)", format_bytes(more));
    table.at_most(
        "resumes: killed at half, sent again beyond what was missing on the disks",
        Measured::new(more as f64, words),
        (2 * PIECE) as f64,
        "≤ 1 MiB per blob under way (2)",
    );
    let lost = (before.to_workers + sent).saturating_sub(blobs);
    let words = format!("{}: framing, link probes, on its way when killed", format_bytes(lost));
    let what = "resumes: sent in both pushes together beyond the blobs";
    table.inform(what, Measured::new(lost as f64, words));
    let run = pair.run(&short_answer(&model))?.json()?;
    let pushed = run["pushed_bytes"].as_u64().context("no pushed_bytes")?;
    let (_, partial) = pair.stored();
    table.judged(
        "resumes: a run on the resumed blobs",
        Measured::new(pushed as f64, format!("16 blobs verified, {pushed} B pushed again")),
        "nothing corrupt",
        pushed == 0 && partial == 0,
    );
    Ok(())
}

/// Bytes in the stores once nothing is written any more.
fn settled(pair: &Pair) -> Result<u64> {
    let started = Instant::now();
    let mut last = pair.stored();
    while started.elapsed() < DEADLINE {
        std::thread::sleep(CALM);
        let now = pair.stored();
        if now == last {
            return Ok(now.0 + now.1);
        }
        last = now;
    }
    bail!("the stores still change {} s after the master's death", DEADLINE.as_secs())
}
