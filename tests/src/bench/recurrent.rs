//! A model of delta rules and attention in 8 bits: prefill and decode, beside llama.cpp.
use std::path::{Path, PathBuf};

use anyhow::Result;
use cake_checkpoint::Scheme;
use cake_tests::ModelShape;

use super::cluster::Ask;
use super::engine::alone;
use super::files;
use super::lab::Lab;
use super::models::active_bytes;
use super::peers::Peers;
use super::quiet::undisturbed;
use super::rates::{median, medians};
use super::table::{Measured, Table};

pub(super) const BAR: &str = "ahead of llama.cpp";
const NAME: &str = "qwen3.5-2b-half";
const THREADS: usize = 2;
const CONTEXT: usize = 1024;
const SCHEME: Scheme = Scheme::Q8;
/// Bits of a weight, as the scheme packs it: in groups of 64, with a scale and a bias of 16 bits each.
const HEAD_BITS: f64 = 8.5;
const DECODE: f64 = 1.1;
const PREFILL: f64 = 1.3;

/// Measures the model, turn about with the peer if it is there.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let shape = ModelShape::qwen3_5_half();
    let model = lab.model(NAME, &shape)?;
    let gguf = lab.peers().map(|peers| gguf(lab, peers, &model)).transpose()?;
    files::warm(&model)?;
    let active = active_bytes(&model, &shape, SCHEME, HEAD_BITS)?;
    let ask = Ask::within("run", &model, CONTEXT).and(&["--encode", &SCHEME.to_string()]);
    let (mut memory, mut ours, mut peer) = (Vec::new(), Vec::new(), Vec::new());
    for _ in lab.rounds("recurrent") {
        let (rate, turn) = undisturbed(THREADS, || alone(&ask))?;
        memory.push(rate);
        ours.push(turn);
        if let (Some(peers), Some(gguf)) = (lab.peers(), &gguf) {
            peer.push(peers.llama_of(gguf)?);
        }
    }
    let parts = memory.iter().zip(&ours).map(|(memory, ours)| ours.decode * active / memory);
    let part = median(parts.collect());
    let ours = medians(&ours);
    let figures = [
        ("decode, 2 threads, q8", ours.decode, DECODE, format!(", {part:.2} of the limit")),
        ("prefill 512, 2 threads, q8", ours.prefill, PREFILL, String::new()),
    ];
    for (index, (what, ours, least, more)) in figures.into_iter().enumerate() {
        let words = format!("{ours:.1} tok/s{more}");
        if peer.is_empty() {
            table.inform(what, Measured::new(ours, words));
            table.not_shown(what, BAR, "no --peers directory".into());
            continue;
        }
        let peer = medians(&peer);
        let peer = [peer.decode, peer.prefill][index];
        let ratio = ours / peer;
        let words = format!("{words}; llama.cpp {peer:.1}: {ratio:.2} ×");
        let bar = format!("≥ {least} × llama.cpp");
        table.judged(what, Measured::new(ratio, words), &bar, ratio >= least);
    }
    Ok(())
}

/// A model of the same shapes and types as the peer reads it, made unless an earlier run made it.
fn gguf(lab: &Lab, peers: &Peers, model: &Path) -> Result<PathBuf> {
    let file = lab.directory().join(format!("{NAME}-q8_0.gguf"));
    if !file.exists() {
        peers.write_recurrent(&model.join("config.json"), &file)?;
    }
    Ok(file)
}
