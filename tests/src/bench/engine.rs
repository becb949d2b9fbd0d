//! Prefill and decode in every encoding, alone and over two pinned workers, beside others.
use anyhow::Result;
use cake_tests::{Master, ModelShape};

use super::bandwidth::read_bandwidth;
use super::cluster::{Ask, Run, pinned};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, one_b};
use super::peers::{Peers, Rates};
use super::rates::{median, medians, rates};
use super::table::{Measured, Table};

const PROMPT: usize = 512;
const THREADS: usize = 2;
/// Tokens before those that are decoded: the peer decodes after none.
const BEFORE: usize = 2;
const ANSWER: usize = 65;
/// Room for prompt and answer.
const CONTEXT: usize = 1024;

/// One encoding, and what it is measured against.
struct Kind {
    encode: &'static str,
    /// The peer's file of about the same precision.
    gguf: &'static str,
    /// Bytes of weights that a token reads: layers, then head.
    layer_bits: f64,
    head_bits: f64,
    /// Decode alone, as a multiple of the peer and as a part of the limit.
    decode: (f64, f64),
    /// Prefill as a multiple of the peer; of PyTorch for bf16.
    prefill: f64,
    /// Decode over two workers, as a multiple of the peer.
    workers: f64,
}

/// An affine group of 64 has a scale and a bias of 16 bits each.
const GROUPED: f64 = 32.0 / 64.0;
const AS_STORED: &str = "as-stored";
const KINDS: [Kind; 3] = [
    Kind {
        encode: AS_STORED,
        gguf: "bf16",
        layer_bits: 16.0,
        head_bits: 16.0,
        decode: (1.2, 0.82),
        prefill: 0.9,
        workers: 1.15,
    },
    Kind {
        encode: "q8",
        gguf: "q8_0",
        layer_bits: 8.0 + GROUPED,
        head_bits: 8.0 + GROUPED,
        decode: (1.05, 0.86),
        prefill: 1.8,
        workers: 1.5,
    },
    Kind {
        encode: "q4",
        gguf: "q4_0",
        layer_bits: 4.0 + GROUPED,
        head_bits: 8.0 + GROUPED,
        decode: (1.15, 0.78),
        prefill: 1.8,
        workers: 2.3,
    },
];

/// What one kind reached, a number per round.
#[derive(Default)]
struct Seen {
    /// Bytes per second that two threads read right before `ours`.
    memory: Vec<f64>,
    ours: Vec<Rates>,
    /// From the mapped checkpoint, where weights are not encoded into memory anyway.
    mapped: Vec<Rates>,
    peer: Vec<Rates>,
    over: Vec<Rates>,
    rpc: Vec<Rates>,
}

/// Measures all kinds, turn about with the peers that are there.
pub(crate) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let model = lab.model(ONE_B, &one_b())?;
    files::warm(&model)?;
    bandwidth(table)?;
    let peers = lab.peers();
    let mut seen: [Seen; KINDS.len()] = Default::default();
    let mut torch = Vec::new();
    let rounds = lab.rounds();
    for round in 0..rounds {
        for (kind, seen) in KINDS.iter().zip(&mut seen) {
            eprintln!("round {} of {rounds}: {}", round + 1, kind.encode);
            let ask = Ask::within("run", &model, CONTEXT).and(&["--encode", kind.encode]);
            seen.memory.push(read_bandwidth(THREADS, true)?);
            seen.ours.push(alone(&ask)?);
            if kind.encode == AS_STORED {
                seen.mapped.push(alone(&ask.clone().and(&["--weights", "map"]))?);
            }
            if let Some(peers) = peers {
                seen.peer.push(peers.llama(kind.gguf)?);
            }
            seen.over.push(over_workers(lab, &ask)?);
            if let Some(peers) = peers {
                seen.rpc.push(peers.llama_rpc(kind.gguf)?);
            }
        }
        if let Some(peers) = peers {
            torch.push(peers.torch_prefill()?);
        }
    }
    for (kind, seen) in KINDS.iter().zip(&seen) {
        report(kind, seen, &torch, peers, table);
    }
    Ok(())
}

/// Tells how fast memory is, for one thread and for two.
fn bandwidth(table: &mut Table) -> Result<()> {
    for threads in [1, THREADS] {
        let [small, huge] = [read_bandwidth(threads, false)?, read_bandwidth(threads, true)?];
        let words = format!("{:.1} GB/s, with huge pages {:.1} GB/s", small / 1e9, huge / 1e9);
        table.inform(&format!("memory read, {threads} threads"), Measured::new(huge, words));
    }
    Ok(())
}

fn report(kind: &Kind, seen: &Seen, torch: &[f64], peers: Option<&Peers>, table: &mut Table) {
    let name = kind.encode;
    let shape = one_b();
    let head = (shape.hidden_size * shape.vocab_size) as f64;
    let layers = shape.layers as f64 * shape.layer_bytes() as f64 / 2.0; // Two bytes per weight.
    let bytes = (layers * kind.layer_bits + head * kind.head_bits) / 8.0;
    let (ours, over) = (medians(&seen.ours), medians(&seen.over));
    // Turn by turn, as memory is not the same all the time.
    let parts =
        seen.memory.iter().zip(&seen.ours).map(|(memory, ours)| ours.decode * bytes / memory);
    let (part, limit) = (median(parts.collect()), median(seen.memory.clone()));
    let (least_ratio, least_part) = kind.decode;
    let bar = format!("≥ {least_ratio} × llama.cpp, ≥ {least_part} of limit");
    let what = format!("decode, 2 threads, {name}");
    let words = format!("{:.1} tok/s, {part:.2} of limit {:.1}", ours.decode, limit / bytes);
    if !seen.mapped.is_empty() {
        let mapped = medians(&seen.mapped).decode;
        let gain = 100.0 * (ours.decode / mapped - 1.0);
        let words = format!("{mapped:.1} tok/s mapped; auto {:.1}: {gain:+.1} %", ours.decode);
        table.inform(&format!("{what}, --weights map"), Measured::new(mapped, words));
    }
    if peers.is_none() {
        table.inform(&what, Measured::new(ours.decode, words));
        let words = format!("{:.0} tok/s", ours.prefill);
        table.inform(&format!("prefill {PROMPT}, {name}"), Measured::new(ours.prefill, words));
        let words = format!("decode {:.1}, prefill {:.0} tok/s", over.decode, over.prefill);
        table.inform(&format!("over 2 pinned workers, {name}"), Measured::new(over.decode, words));
        table.not_shown(&format!("{name} beside peers"), &bar, "no --peers directory".into());
        return;
    }
    let (peer, rpc) = (medians(&seen.peer), medians(&seen.rpc));
    let ratio = ours.decode / peer.decode;
    let words = format!("{words}; llama.cpp {:.1}: {ratio:.2} ×", peer.decode);
    if part > 1.0 && ratio >= least_ratio {
        // Nothing is faster than the limit: memory was slower while it was read.
        table.not_shown(&what, &bar, format!("{words}; the limit was read too low"));
    } else {
        let met = ratio >= least_ratio && part >= least_part;
        table.judged(&what, Measured::new(ratio, words), &bar, met);
    }

    let (other, rate) = match kind.encode {
        AS_STORED => ("PyTorch", median(torch.to_vec())),
        _ => ("llama.cpp", peer.prefill),
    };
    let ratio = ours.prefill / rate;
    let words = format!("{:.0} tok/s; {other} {rate:.0}: {ratio:.2} ×", ours.prefill);
    let bar = format!("≥ {} × {other}", kind.prefill);
    let what = format!("prefill {PROMPT}, 2 threads, {name}");
    table.judged(&what, Measured::new(ratio, words), &bar, ratio >= kind.prefill);

    let ratio = over.decode / rpc.decode;
    let words = format!("{:.1} tok/s; llama.cpp RPC {:.1}: {ratio:.2} ×", over.decode, rpc.decode);
    let bar = format!("≥ {} × llama.cpp RPC", kind.workers);
    let what = format!("decode over 2 pinned workers of 1 thread, {name}");
    table.judged(&what, Measured::new(ratio, words), &bar, ratio >= kind.workers);

    let ratio = over.prefill / rpc.prefill;
    let words =
        format!("{:.0} tok/s; llama.cpp RPC {:.0}: {ratio:.2} ×", over.prefill, rpc.prefill);
    let what = format!("prefill {PROMPT} over 2 pinned workers, {name}");
    match kind.encode {
        AS_STORED => {
            table.judged(&what, Measured::new(ratio, words), "≥ 5 × llama.cpp RPC", ratio >= 5.0);
        }
        _ => table.inform(&what, Measured::new(ratio, words)),
    }
}

/// Both rates of a master that knows no worker.
pub(super) fn alone(ask: &Ask) -> Result<Rates> {
    both(ask, Ask::alone)
}

/// The same over two pinned workers.
pub(super) fn over_workers(lab: &Lab, ask: &Ask) -> Result<Rates> {
    over_workers_cut(lab, ask, CUT, &one_b())
}

/// The same of any model, of which the first worker has so many layers.
pub(super) fn over_workers_cut(
    lab: &Lab,
    ask: &Ask,
    cut: usize,
    shape: &ModelShape,
) -> Result<Rates> {
    let (_home, workers) = pinned(lab)?;
    let master = Master::over(&workers);
    both(&ask.clone().cut(cut, shape), |ask| ask.with(&master))
}

/// How fast a long prompt is read, and how fast tokens are made after next to none: what the peers measure.
fn both(ask: &Ask, run: impl Fn(&Ask) -> Result<Run>) -> Result<Rates> {
    let prefill = rates(&run(&ask.clone().answer(PROMPT, 2))?)?.prefill;
    let decode = rates(&run(&ask.clone().answer(BEFORE, ANSWER))?)?.decode;
    Ok(Rates { prefill, decode })
}
