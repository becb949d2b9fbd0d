//! Plans for models of which only headers are there: exact, soon there, in little memory.
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cake_checkpoint::units::format_bytes;
use cake_engine::DeviceKind;
use cake_tests::model::{Delta, ModelShape, Published, make_hollow, make_published};

use super::cluster::Ask;
use super::lab::Lab;
use super::table::{Measured, Table};

pub(super) const BAR: &str = "exact bytes, ≤ 2 s, ≤ 200 MiB";
const LIMIT_SECONDS: f64 = 2.0;
const LIMIT_BYTES: u64 = 200 << 20;
/// Devices that do not exist.
const DEVICES: [usize; 3] = [3, 8, 40];
/// What they offer together, as a part of the model's bytes: room for KV and scratch beside the layers.
const ROOM: f64 = 1.25;
/// What each offers beside that (bytes): its process and its scratch memory.
const OWN: u64 = 1 << 30;
/// Plans each model on each number of devices.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    for (name, shape) in [("Qwen3-Coder-30B-A3B", coder_30b()), ("Qwen3.6-27B", dense_27b())] {
        let scratch = lab.scratch()?;
        let model = scratch.path().join(name);
        make_hollow(&model, &shape)?;
        let layers = shape.layers as u64 * mean_layer(&shape);
        plan(table, name, &model, [layers, layers])?;
    }
    for published in Published::ALL {
        let scratch = lab.scratch()?;
        let model = scratch.path().join("model");
        make_published(&model, published)?;
        let layers = published.layers_bytes();
        let permille = DeviceKind::Cpu.resident_permille(published.encoding());
        let resident = layers / 1000 * u64::from(permille);
        plan(table, published.name(), &model, [layers, resident])?;
    }
    Ok(())
}

/// Plans a model on each number of devices, whose layers have so many bytes, and take so many in memory.
fn plan(table: &mut Table, name: &str, model: &Path, [layers, resident]: [u64; 2]) -> Result<()> {
    for devices in DEVICES {
        let offer = (resident as f64 * ROOM) as u64 / devices as u64 + OWN;
        let mut ask = Ask::new("plan", model).and(&["--local-memory", "0"]);
        for device in 0..devices {
            ask = ask.and(&["--what-if", &format!("d{device}:{offer}")]);
        }
        let began = Instant::now();
        let run = ask.alone()?.ok()?;
        let (seconds, peak) = (began.elapsed().as_secs_f64(), run.finished.peak_bytes);
        let plan = run.json()?;
        let stages = plan["plan"]["stages"].as_array().context("a plan without stages")?;
        let pushed = plan["plan"]["push_bytes"].as_u64().context("a plan that pushes nothing")?;
        ensure!(pushed >= layers, "{pushed} bytes planned of {layers}");
        // A blob has a header beside its tensors, and its length is a multiple of 64.
        let exact = (pushed - layers) as f64 <= layers as f64 * 1e-3;
        let words = format!(
            "{} in {} stages, {seconds:.2} s, {}",
            format_bytes(pushed),
            stages.len(),
            format_bytes(peak)
        );
        let met = exact && seconds <= LIMIT_SECONDS && peak <= LIMIT_BYTES;
        let what = format!("{name} on {devices} devices");
        table.judged(&what, Measured::new(seconds, words), BAR, met);
    }
    Ok(())
}

/// Bytes of all layers ÷ their number: they are not alike.
fn mean_layer(shape: &ModelShape) -> u64 {
    let ends = 2 * (2 * shape.vocab_size * shape.hidden_size + shape.hidden_size) as u64;
    (shape.bytes() - ends) / shape.layers as u64
}

fn coder_30b() -> ModelShape {
    ModelShape {
        layers: 48,
        vocab_size: 151_936,
        max_positions: 262_144,
        shard_bytes: Some(4 << 30),
        ..ModelShape::qwen3_moe_4b()
    }
}

fn dense_27b() -> ModelShape {
    ModelShape {
        delta: Some(Delta { value_heads: 48, ..Delta::QWEN }),
        hidden_size: 5120,
        intermediate_size: 17_408,
        layers: 64,
        heads: 24,
        vocab_size: 248_320,
        max_positions: 262_144,
        shard_bytes: Some(4 << 30),
        ..ModelShape::qwen3_5_half()
    }
}
