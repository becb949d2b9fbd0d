//! The figures that this project promises, measured with real processes from outside of them.
//!
//! [`lab`] is where it happens, [`cluster`] two workers and commands to a master, [`models`] what they run, [`rates`]
//! how fast that was and [`quiet`] whether the machine was calm, [`files`] and [`fill`] the page cache, [`peers`] other
//! systems, [`table`] the outcome and [`results`] what is kept of it; the figures
//! themselves are in [`push`], [`memory`], [`speed`] and [`demo`]; those of the engine in [`engine`], [`hops`],
//! [`together`], [`context`], [`tiers`] and [`packed7b`]; those of a service in [`serve`], the cost of
//! encryption in [`tls`], the time after a loss in [`recovery`], what strangers can do to a service in [`hostile`]; what
//! packed weights take of wires and memory in [`packed`], how fast those in FP8 are in [`fp8`]; a plan's promises beside what comes of it in [`predictions`]; an earlier version beside this one in [`versions`]; the
//! largest layer there is in [`wide`]; a model from a hub in [`pull`], one in the place of another in [`switch`].
mod bandwidth;
mod cluster;
mod context;
mod demo;
mod engine;
mod experts;
mod files;
mod fill;
mod fp8;
mod gguf;
mod hops;
mod hostile;
mod lab;
mod memory;
mod models;
mod opening;
mod packed;
mod packed7b;
mod peers;
mod plans;
mod predictions;
mod pull;
mod push;
mod quiet;
mod rates;
mod real;
mod recovery;
mod recurrent;
mod results;
mod rewrite;
mod serve;
mod speed;
mod switch;
mod table;
mod tiers;
mod tls;
mod together;
mod turns;
mod versions;
mod wide;

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow, ensure};

pub(crate) use lab::Options;
pub(crate) use results::{Record, tables_of};
pub(crate) use table::Table;

use lab::Lab;

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Everything below.
    Main,
    /// Bytes on the wire, pushed once, resumed.
    Push,
    /// The workers' and the master's memory; makes and deletes a model of 10 GiB.
    Memory,
    /// The time to the demo's first word.
    FirstAnswer,
    /// A push beside `cp`, tokens per second.
    Speed,
    /// Prefill and decode in every encoding, beside llama.cpp and PyTorch; several sequences
    /// together; a long context; plain instructions; a packed 7B (not part of the above).
    Engine,
    /// A mixture of experts at the widths of Qwen3 30B-A3B in 4 bits, beside llama.cpp; makes 10 GiB (not part of main).
    Experts,
    /// Qwen3 30B-A3B whole, in 4 bits, over three workers in control groups; makes and deletes 32 GiB (not part of main).
    RealSize,
    /// A model of delta rules and attention at the widths of Qwen3.5 4B in 8 bits, beside llama.cpp (not part of main).
    Recurrent,
    /// A 1B model in files of llama-quantize, beside llama.cpp on the same files (not part of main).
    Gguf,
    /// Plans for models of which only headers are there; one in a GGUF file of 20 GB opened (not part of main).
    Plans,
    /// Pushed and resident bytes ÷ those of the files, in every layout of packed weights; decode of a 1B model in FP8 beside
    /// the memory's pace; makes and deletes up to 0.6 GB for each, and 1.5 GB (not part of main).
    Packed,
    /// `serve`: many streams at once, the first token beside a long prompt, small questions (not part of
    /// main).
    Serve,
    /// What mutual TLS costs, and how soon answers go on after a loss (not part of main).
    Trust,
    /// The speed that a plan predicts beside the one there is (not part of main).
    Predictions,
    /// `serve` attacked for a minute: memory, `/health` and a stream beside it (not part of main).
    Hostile,
    /// These programs beside those of an earlier version, turn about (not part of main; needs `--before`).
    Versions,
    /// `serve` with two 1B models over three workers that hold both, one in the place of the other (not part of main).
    Switch,
    /// A model of 2 GiB from a hub on loopback: several connections beside one, dropped ones (not part of main).
    Pull,
    /// One turn of `versions`, which runs itself again for each (not part of main).
    #[value(hide = true)]
    Turn,
    /// A layer of 24 GiB, of holes on the disk: pushed and computed with (not part of main).
    Wide,
    /// Checkpoints written anew: speed beside `cp` and llama-quantize, memory; makes and deletes 22 GiB (not part of
    /// main).
    Files,
}

/// How a figure is measured, with its name and bar for when it cannot be.
struct Figure {
    name: &'static str,
    bar: &'static str,
    measure: fn(&Lab, bool, &mut Table) -> Result<()>,
}

const FIRST_ANSWER: &[Figure] = &[Figure {
    name: "first answer",
    bar: "≤ 5 s",
    measure: |lab, _, table| demo::first_answer(lab, table),
}];
const PUSH: &[Figure] = &[
    Figure {
        name: "minimal, pushed once",
        bar: "≤ 1.01; 0 B; ≤ 0.01",
        measure: |lab, _, table| push::minimal_and_once(lab, table),
    },
    Figure {
        name: "resumes",
        bar: "≤ 1 MiB per blob under way",
        measure: |lab, _, table| push::resumes(lab, table),
    },
];
const SPEED: &[Figure] = &[
    Figure {
        name: "push speed",
        bar: "≥ 0.6 of cp, or ≥ 400 MB/s",
        measure: |lab, _, table| speed::push(lab, table),
    },
    Figure { name: "speed", bar: "", measure: |lab, _, table| speed::answers(lab, table) },
];
const ENGINE: &[Figure] = &[
    Figure {
        name: "encodings",
        bar: "ahead of llama.cpp",
        measure: |lab, _, table| engine::measure(lab, table),
    },
    Figure {
        name: "together",
        bar: together::BAR,
        measure: |lab, _, table| together::measure(lab, table),
    },
    Figure {
        name: "context",
        bar: context::BAR,
        measure: |lab, _, table| context::measure(lab, table),
    },
    Figure { name: "tiers", bar: tiers::BAR, measure: |lab, _, table| tiers::measure(lab, table) },
    Figure { name: "hops", bar: hops::BAR, measure: |lab, _, table| hops::measure(lab, table) },
    Figure { name: "packed 7B", bar: packed7b::BAR, measure: packed7b::measure },
];
const EXPERTS: &[Figure] = &[Figure {
    name: "experts",
    bar: experts::BAR,
    measure: |lab, _, table| experts::measure(lab, table),
}];
const REAL_SIZE: &[Figure] =
    &[Figure { name: "real size", bar: real::BAR, measure: real::measure }];
const RECURRENT: &[Figure] = &[Figure {
    name: "recurrent",
    bar: recurrent::BAR,
    measure: |lab, _, table| recurrent::measure(lab, table),
}];
const GGUF: &[Figure] = &[Figure {
    name: "GGUF files",
    bar: gguf::BAR,
    measure: |lab, _, table| gguf::measure(lab, table),
}];
const PLANS: &[Figure] = &[
    Figure { name: "plans", bar: plans::BAR, measure: |lab, _, table| plans::measure(lab, table) },
    Figure {
        name: "opening",
        bar: opening::BAR,
        measure: |lab, _, table| opening::measure(lab, table),
    },
];
const PACKED: &[Figure] = &[
    Figure {
        name: "GGUF blocks",
        bar: packed::BAR,
        measure: |lab, _, table| packed::blocks(lab, table),
    },
    Figure {
        name: "safetensors layouts",
        bar: packed::BAR,
        measure: |lab, _, table| packed::layouts(lab, table),
    },
    Figure { name: "FP8's pace", bar: fp8::BAR, measure: |lab, _, table| fp8::measure(lab, table) },
];
const SERVE: &[Figure] = &[
    Figure {
        name: "throughput",
        bar: serve::THROUGHPUT_BAR,
        measure: |lab, _, table| serve::throughput(lab, table),
    },
    Figure {
        name: "pipelining",
        bar: serve::PIPELINING_BAR,
        measure: |lab, _, table| serve::pipelining(lab, table),
    },
    Figure {
        name: "latency",
        bar: serve::LATENCY_BAR,
        measure: |lab, _, table| serve::latency(lab, table),
    },
    Figure {
        name: "small questions",
        bar: serve::SMALL_BAR,
        measure: |lab, _, table| serve::small(lab, table),
    },
];
const TRUST: &[Figure] = &[
    Figure { name: "TLS", bar: tls::BAR, measure: |lab, _, table| tls::measure(lab, table) },
    Figure {
        name: "recovery",
        bar: recovery::BAR,
        measure: |lab, _, table| recovery::measure(lab, table),
    },
];
const PREDICTIONS: &[Figure] = &[
    Figure {
        name: "alone",
        bar: predictions::BAR,
        measure: |lab, _, table| predictions::alone(lab, table),
    },
    Figure {
        name: "over workers",
        bar: predictions::BAR,
        measure: |lab, _, table| predictions::over_workers(lab, table),
    },
];
const HOSTILE: &[Figure] = &[Figure {
    name: "hostile",
    bar: hostile::BAR,
    measure: |lab, _, table| hostile::measure(lab, table),
}];
/// What versions are compared by, each figure measured once.
const TURN: &[Figure] = &[
    Figure {
        name: "as-stored alone",
        bar: versions::BAR,
        measure: |lab, _, table| versions::alone(lab, "as-stored", table),
    },
    Figure {
        name: "q8 alone",
        bar: versions::BAR,
        measure: |lab, _, table| versions::alone(lab, "q8", table),
    },
    Figure {
        name: "q4 alone",
        bar: versions::BAR,
        measure: |lab, _, table| versions::alone(lab, "q4", table),
    },
    Figure {
        name: "as-stored over workers",
        bar: versions::BAR,
        measure: |lab, _, table| versions::over_workers(lab, "as-stored", table),
    },
    Figure {
        name: "q8 over workers",
        bar: versions::BAR,
        measure: |lab, _, table| versions::over_workers(lab, "q8", table),
    },
    Figure {
        name: "q4 over workers",
        bar: versions::BAR,
        measure: |lab, _, table| versions::over_workers(lab, "q4", table),
    },
    Figure {
        name: "8 streams",
        bar: versions::BAR,
        measure: |lab, _, table| versions::streams(lab, table),
    },
    Figure {
        name: "push",
        bar: versions::BAR,
        measure: |lab, _, table| versions::push(lab, table),
    },
];
const WIDE: &[Figure] =
    &[Figure { name: "wide", bar: wide::BAR, measure: |lab, _, table| wide::measure(lab, table) }];
const FILES: &[Figure] = &[
    Figure {
        name: "merge and split beside cp",
        bar: rewrite::BESIDE_CP,
        measure: |lab, _, table| rewrite::beside_cp(lab, table),
    },
    Figure {
        name: "encodings",
        bar: rewrite::ENCODINGS_BAR,
        measure: |lab, _, table| rewrite::encodings(lab, table),
    },
    Figure { name: "memory", bar: rewrite::MEMORY, measure: rewrite::memory },
];
const PULL: &[Figure] = &[
    Figure {
        name: "pull's rate",
        bar: pull::RATE_BAR,
        measure: |lab, _, table| pull::rate(lab, table),
    },
    Figure {
        name: "pull's drops",
        bar: pull::DROPS_BAR,
        measure: |lab, _, table| pull::drops(lab, table),
    },
];
const SWITCH: &[Figure] = &[Figure {
    name: "switch",
    bar: switch::BAR,
    measure: |lab, _, table| switch::measure(lab, table),
}];
const MEMORY: &[Figure] = &[
    Figure {
        name: "worker's memory",
        bar: "≤ 1.10",
        measure: |lab, _, table| memory::workers(lab, table),
    },
    Figure {
        name: "worker's memory, limited",
        bar: "the run completes, no kill",
        measure: |lab, _, table| memory::limited(lab, table),
    },
    Figure { name: "master's memory", bar: "≤ 150 MiB", measure: memory::master },
];

/// Measures the figures of a part whose names contain `only`, if it is given; what goes wrong is in
/// the table too. `keep` leaves the largest models there.
///
/// # Errors
/// If nothing at all can be measured.
pub(crate) fn measure(
    part: Part,
    only: Option<&str>,
    options: Options,
    keep: bool,
) -> Result<Table> {
    let figures: &[&[Figure]] = match part {
        Part::Main => &[FIRST_ANSWER, PUSH, SPEED, MEMORY],
        Part::Push => &[PUSH],
        Part::Memory => &[MEMORY],
        Part::FirstAnswer => &[FIRST_ANSWER],
        Part::Speed => &[SPEED],
        Part::Engine => &[ENGINE],
        Part::Experts => &[EXPERTS],
        Part::RealSize => &[REAL_SIZE],
        Part::Recurrent => &[RECURRENT],
        Part::Gguf => &[GGUF],
        Part::Plans => &[PLANS],
        Part::Packed => &[PACKED],
        Part::Serve => &[SERVE],
        Part::Trust => &[TRUST],
        Part::Predictions => &[PREDICTIONS],
        Part::Hostile => &[HOSTILE],
        Part::Versions | Part::Turn => &[TURN],
        Part::Wide => &[WIDE],
        Part::Files => &[FILES],
        Part::Pull => &[PULL],
        Part::Switch => &[SWITCH],
    };
    let figures: Vec<&Figure> = figures.iter().copied().flatten().collect();
    let names = figures.iter().map(|figure| figure.name).collect::<Vec<_>>().join(", ");
    let wanted = |figure: &&Figure| only.is_none_or(|only| figure.name.contains(only));
    let figures: Vec<&Figure> = figures.into_iter().filter(wanted).collect();
    ensure!(!figures.is_empty(), "no figure of this part has that name: they are {names}");
    let lab = Lab::open(options)?;
    let mut table = Table::new(lab.describe());
    for figure in figures {
        eprintln!("{}:", figure.name);
        // The harness panics where a scenario would fail; here the other figures go on.
        let attempt = || match part {
            Part::Versions => versions::compare(&lab, figure.name, &mut table),
            _ => (figure.measure)(&lab, keep, &mut table),
        };
        let outcome = catch_unwind(AssertUnwindSafe(attempt))
            .unwrap_or_else(|_| Err(anyhow!("the harness gave up, see above")));
        if let Err(error) = outcome {
            table.not_shown(figure.name, figure.bar, format!("{error:#}"));
        }
    }
    table.rounds = lab.fewest_rounds();
    Ok(table)
}
