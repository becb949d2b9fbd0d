//! Prefill and decode in every encoding, alone and over two pinned workers, beside others.
use anyhow::Result;
use cake_tests::{Master, ModelShape};

use super::bandwidth::read_bandwidth;
use super::cluster::{Ask, Run, pinned};
use super::files;
use super::lab::Lab;
use super::models::{CUT, ONE_B, active_bytes, one_b};
use super::peers::{Peers, Rates};
use super::quiet::undisturbed;
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
    /// Bits of a weight of the head.
    head_bits: f64,
    /// What is asked of processors with tiles of bf16 and bytes (AMX), and of all others.
    with_tiles: Bars,
    others: Bars,
}

/// What is asked of an encoding.
#[derive(Clone, Copy)]
struct Bars {
    /// Decode alone, as a multiple of the peer.
    decode: f64,
    /// The same as a part of what memory gives.
    part: f64,
    /// Prefill as a multiple of the peer; of PyTorch for bf16.
    prefill: f64,
    /// Decode over two workers, as a multiple of the peer.
    workers: f64,
}

/// An affine group of 64 has a scale and a bias of 16 bits each.
const GROUPED: f64 = 32.0 / 64.0;
/// Of the better placement's rate: the least that the chosen one has.
const AUTO: f64 = 0.98;
const AS_STORED: &str = "as-stored";
const KINDS: [Kind; 3] = [
    Kind {
        encode: AS_STORED,
        gguf: "bf16",
        head_bits: 16.0,
        with_tiles: Bars { decode: 1.2, part: 0.85, prefill: 1.0, workers: 1.15 },
        others: Bars { decode: 1.05, part: 0.85, prefill: 1.0, workers: 1.0 },
    },
    Kind {
        encode: "q8",
        gguf: "q8_0",
        head_bits: 8.0 + GROUPED,
        with_tiles: Bars { decode: 1.05, part: 0.86, prefill: 1.8, workers: 1.5 },
        others: Bars { decode: 1.05, part: 0.85, prefill: 1.8, workers: 1.4 },
    },
    Kind {
        encode: "q4",
        gguf: "q4_0",
        head_bits: 8.0 + GROUPED,
        with_tiles: Bars { decode: 1.15, part: 0.85, prefill: 1.8, workers: 2.3 },
        others: Bars { decode: 1.05, part: 0.85, prefill: 1.8, workers: 2.0 },
    },
];

/// What one kind reached, a number per round.
#[derive(Default)]
struct Seen {
    /// Bytes per second that two threads read beside `ours`, and one beside `over`.
    memory: Vec<f64>,
    memory_of_one: Vec<f64>,
    ours: Vec<Rates>,
    /// From the mapped checkpoint and from a copy of it, where weights are not encoded into memory anyway.
    mapped: Vec<Rates>,
    copied: Vec<Rates>,
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
    for _ in lab.rounds("encodings") {
        for (kind, seen) in KINDS.iter().zip(&mut seen) {
            eprintln!("{}", kind.encode);
            let ask = Ask::within("run", &model, CONTEXT).and(&["--encode", kind.encode]);
            let (memory, ours) = undisturbed(THREADS, || alone(&ask))?;
            seen.memory.push(memory);
            seen.ours.push(ours);
            if kind.encode == AS_STORED {
                for (way, rates) in [("map", &mut seen.mapped), ("copy", &mut seen.copied)] {
                    let ask = ask.clone().and(&["--weights", way]);
                    rates.push(undisturbed(THREADS, || alone(&ask))?.1);
                }
            }
            if let Some(peers) = peers {
                seen.peer.push(undisturbed(THREADS, || peers.llama(kind.gguf))?.1);
            }
            let (memory, over) = undisturbed(1, || over_workers(lab, &ask))?;
            seen.memory_of_one.push(memory);
            seen.over.push(over);
            if let Some(peers) = peers {
                seen.rpc.push(undisturbed(1, || peers.llama_rpc(kind.gguf))?.1);
            }
        }
        if let Some(peers) = peers {
            torch.push(peers.torch_prefill()?);
        }
    }
    for (kind, seen) in KINDS.iter().zip(&seen) {
        let bytes = active_bytes(&model, &one_b(), kind.encode.parse()?, kind.head_bits)?;
        report((kind, bytes), seen, &torch, peers, table);
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

/// Tells what an encoding reached, of whose weights a token reads so many `bytes`.
fn report(
    (kind, bytes): (&Kind, f64),
    seen: &Seen,
    torch: &[f64],
    peers: Option<&Peers>,
    table: &mut Table,
) {
    let name = kind.encode;
    let (ours, over) = (medians(&seen.ours), medians(&seen.over));
    let bars = if has_tiles() { kind.with_tiles } else { kind.others };
    let alone = Decoded::new(&seen.ours, &seen.memory, bytes);
    let chained = Decoded::new(&seen.over, &seen.memory_of_one, bytes);
    placements(name, seen, table);
    if peers.is_none() {
        table.inform(&decode(name), Measured::new(ours.decode, alone.words()));
        let words = format!("{:.0} tok/s", ours.prefill);
        table.inform(&format!("prefill {PROMPT}, {name}"), Measured::new(ours.prefill, words));
        let words = format!("decode {}, prefill {:.0} tok/s", chained.words(), over.prefill);
        table.inform(&format!("over 2 pinned workers, {name}"), Measured::new(over.decode, words));
        let bar = format!("≥ {} × llama.cpp, ≥ {} of limit", bars.decode, bars.part);
        table.not_shown(&format!("{name} beside peers"), &bar, "no --peers directory".into());
        return;
    }
    let (peer, rpc) = (medians(&seen.peer), medians(&seen.rpc));
    alone.judge(&decode(name), ("llama.cpp", peer.decode), (bars.decode, bars.part), table);
    let (other, rate) = match kind.encode {
        AS_STORED => ("PyTorch", median(torch.to_vec())),
        _ => ("llama.cpp", peer.prefill),
    };
    let what = format!("prefill {PROMPT}, 2 threads, {name}");
    prefill(&what, ours.prefill, (other, rate), Some(bars.prefill), table);
    let what = format!("decode over 2 pinned workers of 1 thread, {name}");
    chained.judge(&what, ("llama.cpp RPC", rpc.decode), (bars.workers, bars.part), table);
    let what = format!("prefill {PROMPT} over 2 pinned workers, {name}");
    let least = (kind.encode == AS_STORED).then_some(5.0);
    prefill(&what, over.prefill, ("llama.cpp RPC", rpc.prefill), least, table);
}

fn decode(encode: &str) -> String {
    format!("decode, 2 threads, {encode}")
}

/// How far the choice of where weights lie is behind the better of the two.
fn placements(name: &str, seen: &Seen, table: &mut Table) {
    if seen.mapped.is_empty() {
        return;
    }
    let [auto, map, copy] =
        [&seen.ours, &seen.mapped, &seen.copied].map(|rates| medians(rates).decode);
    let ratio = auto / map.max(copy);
    let words = format!("{auto:.1} tok/s, mapped {map:.1}, copied {copy:.1}: {ratio:.3}");
    let what = format!("{}, --weights auto ÷ the better", decode(name));
    table.judged(&what, Measured::new(ratio, words), "≥ 0.98", ratio >= AUTO);
}

/// A rate of prompts beside another's, judged if something is asked of it.
fn prefill(what: &str, ours: f64, peer: (&str, f64), least: Option<f64>, table: &mut Table) {
    let (other, theirs) = peer;
    let ratio = ours / theirs;
    let words = format!("{ours:.0} tok/s; {other} {theirs:.0}: {ratio:.2} ×");
    let measured = Measured::new(ratio, words).beside(other, ours, theirs);
    match least {
        Some(least) => {
            table.judged(what, measured, &format!("≥ {least} × {other}"), ratio >= least);
        }
        None => table.inform(what, measured),
    }
}

/// Tokens decoded per second, beside what memory gave in the same turns.
struct Decoded {
    /// The median of the rounds.
    rate: f64,
    /// Of the memory's limit, the median of the rounds, and that limit in tokens per second.
    part: f64,
    limit: f64,
}

impl Decoded {
    /// `memory` is in bytes per second, a turn's at a time, as memory is not the same all the time.
    fn new(rates: &[Rates], memory: &[f64], bytes: f64) -> Decoded {
        let parts = memory.iter().zip(rates).map(|(memory, rate)| rate.decode * bytes / memory);
        Decoded {
            rate: medians(rates).decode,
            part: median(parts.collect()),
            limit: median(memory.to_vec()) / bytes,
        }
    }

    fn words(&self) -> String {
        format!("{:.1} tok/s, {:.2} of limit {:.1}", self.rate, self.part, self.limit)
    }

    /// Beside a peer's rate: `least` is how many times that, and which part of the limit.
    fn judge(&self, what: &str, peer: (&str, f64), least: (f64, f64), table: &mut Table) {
        let (other, theirs) = peer;
        let (least, least_part) = least;
        let ratio = self.rate / theirs;
        let words = format!("{}; {other} {theirs:.1}: {ratio:.2} ×", self.words());
        let bar = format!("≥ {least} × {other}, ≥ {least_part} of limit");
        if self.part > 1.0 && ratio >= least {
            // Nothing is faster than the limit: memory was slower while it was read.
            table.not_shown(what, &bar, format!("{words}; the limit was read too low"));
        } else {
            let met = ratio >= least && self.part >= least_part;
            let measured = Measured::new(ratio, words).beside(other, self.rate, theirs);
            table.judged(what, measured, &bar, met);
        }
    }
}

/// Whether this processor multiplies tiles.
fn has_tiles() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.split_ascii_whitespace().any(|word| word == "amx_bf16")
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
