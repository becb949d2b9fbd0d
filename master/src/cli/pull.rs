//! `cake-master pull ORG/NAME`: a model from the Hub into its cache.
use std::path::Path;
use std::time::Instant;

use cake_checkpoint::LayerRange;
use cake_checkpoint::units::{format_bytes, format_rate};
use cake_hub::{Choice, MAX_CONNECTIONS, Wanted};
use serde::Serialize;

use super::args::of_hub;
use super::ctrl_c::CtrlC;
use super::pulling::Pulling;
use super::report::duration;
use super::{Error, out, report};
use crate::shelf::CONNECTIONS;

/// Arguments of `pull`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Model")]
pub(super) struct Args {
    /// The model: ORG/NAME, or ORG/NAME@REVISION with a branch, a tag or a commit.
    #[arg(value_parser = of_hub)]
    model: Wanted,
    /// Only files whose names fit (such as '*.gguf'); may be repeated. Default: safetensors files and the texts beside
    /// them.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Of the weights only the files that have something of these layers, counted from 0, the end not included (such as
    /// 0..16). Default: all of them.
    #[arg(long, value_name = "A..B")]
    only_layers: Option<LayerRange>,
    /// How many connections fetch at once.
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS, help_heading = "Network")]
    connections: usize,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// What programs are told.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    revision: &'a str,
    commit: &'a str,
    path: &'a Path,
    files: usize,
    bytes: u64,
    /// Bytes that came over the network.
    fetched_bytes: u64,
    left_out_files: usize,
    left_out_bytes: u64,
    seconds: f64,
}

impl Args {
    /// Fetches it, and prints where it is.
    pub(super) async fn run(self, ctrl_c: CtrlC) -> Result<(), Error> {
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            let expected = format!("1 to {MAX_CONNECTIONS}");
            return Err(Error::argument("--connections", self.connections, expected));
        }
        if let Some(layers) = self.only_layers.filter(|layers| layers.is_empty()) {
            return Err(Error::argument("--only-layers", layers, "at least one layer"));
        }
        let mut interrupts = ctrl_c.take_over();
        let started = Instant::now();
        let choice = Choice { include: self.include, layers: self.only_layers };
        let pulling = Pulling::plan(self.model, choice, &mut interrupts).await?;
        let plan = pulling.what();
        let (wanted, commit, files) =
            (plan.wanted().clone(), plan.commit().to_owned(), plan.files());
        let (left_out_files, left_out_bytes, names) = plan.left_out();
        if left_out_files > 0 && !self.json {
            let (s, size) = (plural(left_out_files), format_bytes(left_out_bytes));
            out::note(format_args!("note: {left_out_files} file{s} left out ({size}): {names}"));
        }
        let pulled = pulling.run(self.connections, !self.json, &mut interrupts).await?;
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            return report::print_json(&Report {
                model: wanted.repo(),
                revision: wanted.revision(),
                commit: &commit,
                path: &pulled.path,
                files,
                bytes: pulled.bytes,
                fetched_bytes: pulled.fetched_bytes,
                left_out_files,
                left_out_bytes,
                seconds,
            });
        }
        let fetched = match pulled.fetched_bytes {
            0 => "all there already".to_owned(),
            bytes => format!(
                "{} fetched in {}, {}",
                format_bytes(bytes),
                duration(seconds),
                format_rate(bytes as f64 / seconds.max(1e-9))
            ),
        };
        let (s, size) = (plural(files), format_bytes(pulled.bytes));
        let path = pulled.path.display();
        out::line(format_args!("{wanted} is in {path} ({files} file{s}, {size}; {fetched})"))
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
