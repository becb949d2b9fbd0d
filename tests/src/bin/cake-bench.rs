//! Measures what this project promises and prints a table; `tests/benches/README.md` says more.
#[path = "../bench/mod.rs"]
mod bench;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};

#[global_allocator]
static ALLOCATOR: cake_engine::Reuse = cake_engine::Reuse;

/// Measures bytes, memory and times of the release binaries on this machine, from outside.
#[derive(Debug, Parser)]
#[command(name = "cake-bench")]
struct Cli {
    /// What to measure.
    #[arg(value_enum, default_value = "main")]
    part: bench::Part,
    /// Only those figures of it whose name has this in it: `engine` has encodings, together, context, hops,
    /// tiers and packed 7B, `serve` has throughput, pipelining, latency and small questions, `predictions` has alone
    /// and over workers, `versions` has as-stored, q8 and q4, each alone and over workers, 8 streams and push, `pull` has rate and drops,
    /// `files` has merge and split beside cp, encodings and memory.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    #[command(flatten)]
    options: bench::Options,
    /// Keep the models of 4 and 10 GiB for the next time.
    #[arg(long)]
    keep: bool,
    /// Add the outcome as a line to PART.jsonl in this directory: tests/benches/results keeps one for each machine.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Measure nothing: print the README's tables of what was recorded in this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "record")]
    tables: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(directory) = &cli.tables {
        print!("{}", bench::tables_of(directory)?);
        return Ok(());
    }
    anyhow::ensure!(!cfg!(debug_assertions), "measure what people use: cargo run --release");
    let only = cli.only.as_deref();
    let table = bench::measure(cli.part, only, cli.options, cli.keep)?;
    if let Some(directory) = &cli.record {
        let part = cli.part.to_possible_value().context("a part without a name")?;
        bench::Record::new(part.get_name(), table.rounds, table.figures())?.append(directory)?;
    }
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        print!("{}", table.render());
    }
    Ok(())
}
