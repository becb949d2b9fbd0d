//! A mixture of experts in 4 bits: prefill and decode, alone and over two pinned workers, beside llama.cpp.
use std::path::{Path, PathBuf};

use anyhow::Result;
use cake_checkpoint::Scheme;
use cake_tests::ModelShape;

use super::cluster::Ask;
use super::files;
use super::lab::Lab;
use super::models::active_bytes;
use super::peers::Rates;
use super::rates::{median, medians};
use super::rewrite::{GGUF_Q4, write};
use super::table::{Measured, Table};
use super::turns::{NUMERICS, Turns};

pub(super) const BAR: &str = "ahead of llama.cpp";
const NAME: &str = "qwen3-moe-4b";
const CONTEXT: usize = 1024;
const SCHEME: Scheme = Scheme::Q4;
/// Bits of a weight of the head, as the scheme packs it: in groups of 64, with a scale and a bias of 16 bits each.
const HEAD_BITS: f64 = 8.5;

/// Measures the mixture, turn about with the peer if it is there.
pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let shape = ModelShape::qwen3_moe_4b();
    let model = lab.model(NAME, &shape)?;
    let gguf = lab.peers().map(|_| gguf(lab, &model)).transpose()?;
    files::warm(&model)?;
    let active = active_bytes(&model, &shape, SCHEME, HEAD_BITS)?;
    let scheme = SCHEME.to_string();
    let ask = |numerics| {
        Ask::within("run", &model, CONTEXT).and(&["--encode", &scheme, "--numerics", numerics])
    };
    let mut ours = NUMERICS.map(|numerics| (numerics, Turns::default()));
    let (mut peer, mut rpc) = (Vec::new(), Vec::new());
    for _ in lab.rounds("experts") {
        for (numerics, turns) in &mut ours {
            turns.take(lab, &ask(numerics), &shape)?;
        }
        if let (Some(peers), Some(gguf)) = (lab.peers(), &gguf) {
            peer.push(peers.llama_of(gguf)?);
            rpc.push(peers.llama_rpc_of(gguf)?);
        }
    }
    let beside = gguf.is_some().then(|| (medians(&peer), medians(&rpc)));
    for (numerics, turns) in &ours {
        judge(numerics, turns, active, beside.as_ref(), table);
    }
    Ok(())
}

/// The rows of one way to compute, beside the peer alone and over two workers.
fn judge(
    numerics: &str,
    turns: &Turns,
    active: f64,
    beside: Option<&(Rates, Rates)>,
    table: &mut Table,
) {
    let (part, limit) = (turns.part(active), median(turns.memory.clone()) / active);
    let (ours, over) = (medians(&turns.alone), medians(&turns.over));
    let words = format!("{:.1} tok/s, {part:.2} of limit {limit:.1}", ours.decode);
    let of = |what: &str| format!("{what}, q4, {numerics}");
    let (what, bar) = (of("decode, 2 threads"), "≥ 1.2 × llama.cpp, ≥ 0.7 of limit");
    let Some((peer, rpc)) = beside else {
        table.inform(&what, Measured::new(ours.decode, words));
        let words = format!("{:.0} tok/s", ours.prefill);
        table.inform(&of("prefill 512, 2 threads"), Measured::new(ours.prefill, words));
        let words = format!("decode {:.1}, prefill {:.0} tok/s", over.decode, over.prefill);
        table.inform(&of("over 2 pinned workers"), Measured::new(over.decode, words));
        table.not_shown(&of("beside llama.cpp"), bar, "no --peers directory".into());
        return;
    };
    let ratio = ours.decode / peer.decode;
    let words = format!("{words}; llama.cpp {:.1}: {ratio:.2} ×", peer.decode);
    table.judged(&what, Measured::new(ratio, words), bar, ratio >= 1.2 && part >= 0.7);
    let mut row = |what: &str, ours: f64, peer: f64, least: f64| {
        let ratio = ours / peer;
        let words = format!("{ours:.1} tok/s; llama.cpp {peer:.1}: {ratio:.2} ×");
        let bar = format!("≥ {least} × llama.cpp");
        table.judged(&of(what), Measured::new(ratio, words), &bar, ratio >= least);
    };
    row("prefill 512, 2 threads", ours.prefill, peer.prefill, 1.5);
    row("decode over 2 pinned workers of 1 thread", over.decode, rpc.decode, 2.0);
}

/// The same model as the peer reads it, made unless an earlier run made it.
fn gguf(lab: &Lab, model: &Path) -> Result<PathBuf> {
    let file = lab.directory().join(format!("{NAME}-q4_0.gguf"));
    if !file.exists() {
        write(model, GGUF_Q4, &file)?;
    }
    Ok(file)
}
