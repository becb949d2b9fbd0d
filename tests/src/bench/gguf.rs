//! GGUF files of llama.cpp's quantizer: prefill and decode, alone and over two pinned workers, beside llama.cpp on the same
//! file: as the engine computes by default, and with activations of 8 bits in MLPs, as llama.cpp has them everywhere.
use std::path::{Path, PathBuf};

use anyhow::Result;
use cake_tests::ModelShape;

use super::cluster::Ask;
use super::files;
use super::lab::Lab;
use super::peers::Rates;
use super::rates::medians;
use super::rewrite::{GGUF_BF16, write};
use super::table::{Measured, Table};
use super::turns::{NUMERICS, Turns};

pub(super) const BAR: &str = "ahead of llama.cpp on its own files";
const MODEL: &str = "llama-1b";
const CONTEXT: usize = 1024;
/// Of the memory's rate for the bytes of a file: the least that decoding reaches.
const PART: f64 = 0.75;
const PREFILL: f64 = 1.8;
const OVER_DECODE: f64 = 2.0;
const OVER_PREFILL: f64 = 5.0;

/// What llama-quantize calls a mix of blocks, and how many times as fast as llama.cpp a token is to be.
const KINDS: [(&str, f64); 4] = [("Q4_K_M", 1.5), ("Q6_K", 1.3), ("Q8_0", 1.3), ("Q4_0", 1.3)];

/// Measures a model in each mix, turn about with the peer.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let Some((peers, quantizer)) = lab.peers().and_then(|it| Some((it, it.quantizer()?))) else {
        table.not_shown("GGUF files", BAR, "no --peers directory with llama-quantize".into());
        return Ok(());
    };
    let shape = ModelShape::llama_1b();
    let model = lab.model(MODEL, &shape)?;
    let whole = made(lab, "bf16", |out| write(&model, GGUF_BF16, out).map(drop))?;
    for (kind, least) in KINDS {
        let file = made(lab, kind, |out| quantizer.run(&whole, out, kind, "2"))?;
        files::warm(&file)?;
        let ask = |numerics| Ask::within("run", &file, CONTEXT).and(&["--numerics", numerics]);
        let mut ours = NUMERICS.map(|numerics| (numerics, Turns::default()));
        let (mut peer, mut rpc) = (Vec::new(), Vec::new());
        for _ in lab.rounds(kind) {
            for (numerics, turns) in &mut ours {
                turns.take(lab, &ask(numerics), &shape)?;
            }
            peer.push(peers.llama_of(&file)?);
            rpc.push(peers.llama_rpc_of(&file)?);
        }
        // All of a file is read for a token: its embedding is its head.
        let bytes = file.metadata()?.len() as f64;
        for (numerics, turns) in &ours {
            let rates = [&turns.alone, &peer, &turns.over, &rpc].map(|rates| medians(rates));
            judge(&format!("{kind}, {numerics}"), least, turns.part(bytes), rates, table);
        }
    }
    Ok(())
}

/// The rows of one mix.
fn judge(kind: &str, least: f64, part: f64, rates: [Rates; 4], table: &mut Table) {
    let [ours, peer, over, rpc] = rates;
    let mut row = |what: &str, ours: f64, peer: f64, least: f64, part: Option<f64>| {
        let ratio = ours / peer;
        let of_limit = part.map_or(String::new(), |part| format!(", {part:.2} of the limit"));
        let words = format!("{ours:.1} tok/s{of_limit}; llama.cpp {peer:.1}: {ratio:.2} ×");
        let and = part.map_or(String::new(), |_| format!(", ≥ {PART} of the limit"));
        let bar = format!("≥ {least} × llama.cpp{and}");
        let met = ratio >= least && part.is_none_or(|part| part >= PART);
        table.judged(&format!("{kind}: {what}"), Measured::new(ratio, words), &bar, met);
    };
    row("decode, 2 threads", ours.decode, peer.decode, least, Some(part));
    row("prefill 512, 2 threads", ours.prefill, peer.prefill, PREFILL, None);
    row("decode over 2 pinned workers", over.decode, rpc.decode, OVER_DECODE, None);
    row("prefill over 2 pinned workers", over.prefill, rpc.prefill, OVER_PREFILL, None);
}

/// A file of the model, made unless an earlier run made it.
fn made(lab: &Lab, kind: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let file = lab.directory().join(format!("{MODEL}-{}.gguf", kind.to_lowercase()));
    if !file.exists() {
        make(&file)?;
    }
    Ok(file)
}
