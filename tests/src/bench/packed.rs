//! Packed weights stay packed: what crosses to a worker, and what it then has in memory, beside the bytes in the files.
use std::path::Path;

use anyhow::{Context, Result};
use cake_checkpoint::GgmlType;
use cake_checkpoint::units::format_bytes;
use cake_tests::model::{GgufModel, ModelShape, Packing, make_packed};
use cake_tests::process::status_bytes;
use cake_tests::{CountingProxy, Master, Server, TestWorker, WorkerOptions};
use serde_json::json;

use super::cluster::Ask;
use super::lab::Lab;
use super::table::{Measured, Table};

pub(super) const BAR: &str = "pushed ≤ 1.001; resident ≤ 1.05";
const PUSHED: f64 = 1.001;
const RESIDENT: f64 = 1.05;
const SEED: u64 = 1;
/// More than any of the models takes.
const OFFER: u64 = 4 << 30;
/// Tokens of context: little, so that keys, values and scratch are little beside the weights.
const CONTEXT: usize = 64;
const ARGS: [&str; 6] = ["--context", "64", "--parallel", "1", "--chunk", "16"];

/// Layers of a Llama of 1B that have some hundred megabytes together in few bits, with the vocabulary of the goldens.
fn shape() -> ModelShape {
    ModelShape { layers: 8, vocab_size: 384, rope_llama3: false, ..ModelShape::llama_1b() }
}

/// Every kind of block.
pub(super) fn blocks(lab: &Lab, table: &mut Table) -> Result<()> {
    for kind in GgmlType::ALL {
        let scratch = lab.scratch()?;
        let model = GgufModel::new(&shape(), |_| kind);
        lab.need_disk(2 * model.bytes())?;
        let file = scratch.path().join("model.gguf");
        model.write(&file, Some(SEED))?;
        one(lab, &format!("GGUF {kind}"), &file, model.layers_bytes(), table)?;
    }
    Ok(())
}

/// Every layout of safetensors.
pub(super) fn layouts(lab: &Lab, table: &mut Table) -> Result<()> {
    for packing in Packing::ALL {
        let scratch = lab.scratch()?;
        let bytes = packing.layers_bytes(&shape());
        lab.need_disk(2 * bytes)?;
        let model = scratch.path().join("model");
        make_packed(&model, &shape(), packing, SEED)?;
        one(lab, &packing.name(), &model, bytes, table)?;
    }
    Ok(())
}

/// Pushes a model whose layers have so many bytes, and has a worker that began with them in its store answer.
fn one(lab: &Lab, name: &str, model: &Path, bytes: u64, table: &mut Table) -> Result<()> {
    eprintln!("{name} ...");
    let home = lab.scratch()?;
    let start = || {
        let directory = Some(home.path().to_owned());
        TestWorker::start(
            "w",
            WorkerOptions { memory: OFFER, directory, ..WorkerOptions::default() },
        )
    };
    let part = |found: u64| found as f64 / bytes as f64;
    let words = |found: u64| format!("{} of {}", format_bytes(found), format_bytes(bytes));

    let worker = start();
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([proxy.address.clone()]);
    // Planning times the link by sending something, once: that is no part of the push.
    Ask::within("plan", model, CONTEXT).with(&master)?;
    let before = proxy.to_worker();
    Ask::within("push", model, CONTEXT).with(&master)?;
    let pushed = proxy.to_worker() - before;
    let measured = Measured::ratio(part(pushed), &words(pushed));
    table.at_most(&format!("{name}: pushed"), measured, PUSHED, "≤ 1.001");
    drop((master, proxy, worker));

    let worker = start();
    let resident = || status_bytes(worker.pid(), "VmRSS:").context("the worker is gone");
    let idle = resident()?;
    let server = Server::start(&Master::over([&worker]), model, &ARGS);
    let ask =
        json!({ "prompt": "Once upon", "max_tokens": 4, "temperature": 0, "ignore_eos": true });
    let reply = server.post("/v1/completions", &ask);
    anyhow::ensure!(reply.status == 200, "{name}: {}", reply.body);
    let held = resident()?.saturating_sub(idle);
    let words = format!("{}, {} before", words(held), format_bytes(idle));
    table.at_most(
        &format!("{name}: resident"),
        Measured::ratio(part(held), &words),
        RESIDENT,
        "≤ 1.05",
    );
    Ok(())
}
