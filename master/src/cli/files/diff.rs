//! `cake-master diff A B`: what two checkpoints have in common, and by how much their numbers differ.
use std::path::Path;

use cake_checkpoint::Checkpoint;
use cake_transform::{By, Changed, Difference, Source, compare};
use tokio::task::block_in_place;

use super::{MOST_ASKED, Progress, open, threads, watched};
use crate::cli::args::MODEL;
use crate::cli::ctrl_c::Interrupts;
use crate::cli::{Error, out, report};

/// Arguments of `diff`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    #[arg(help = MODEL)]
    pub(in crate::cli) before: String,
    /// The one to compare with it.
    pub(in crate::cli) after: String,
    /// How many threads read, 64 at most. Default: one for each processor, 16 at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_ASKED))]
    threads: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

impl Args {
    /// Compares, and fails if there is any difference.
    pub(in crate::cli) async fn run(self, interrupts: Interrupts) -> Result<(), Error> {
        let (before, after) = block_in_place(|| apart(both(&self.before)?, both(&self.after)?))?;
        let threads = threads(self.threads);
        let read = move |progress: &Progress| {
            let (before, after) = ((&before.0, before.1.as_ref()), (&after.0, after.1.as_ref()));
            compare(before, after, threads, progress)
        };
        let found = watched(Path::new(&self.before), "compared", self.json, interrupts, read);
        let found = found.await??;
        match self.json {
            true => report::print_json(&found)?,
            false => out::text(text(&found))?,
        }
        let Difference { added, removed, changed, .. } = &found;
        match added.len() + removed.len() + changed.len() {
            0 => Ok(()),
            tensors => Err(Error::CheckpointsDiffer { tensors }),
        }
    }
}

/// What is read, and the model that it is, if it is one that runs here.
type Read = (Source, Option<Checkpoint>);

fn both(model: &str) -> Result<Read, Error> {
    let source = open(model)?;
    let checkpoint = source.checkpoint().ok();
    Ok((source, checkpoint))
}

/// The two with each expert's tensors by themselves, if both are known as models: else names must stay those of the files.
fn apart(mut before: Read, mut after: Read) -> Result<(Read, Read), Error> {
    if let ((_, Some(_)), (_, Some(_))) = (&before, &after) {
        for (source, checkpoint) in [&mut before, &mut after] {
            if let Some(checkpoint) = checkpoint {
                Source::refuse_across(checkpoint, "differences")
                    .map_err(cake_transform::Error::from)?;
                source.unstack(&checkpoint.config)?;
            }
        }
    }
    Ok((before, after))
}

fn text(found: &Difference) -> String {
    let Difference { added, removed, changed, equal } = found;
    let line =
        |what: &'static str| move |name: &String| format!("{what:<8} {}\n", name.escape_debug());
    let mut text: String = removed.iter().map(line("removed")).collect();
    text.extend(added.iter().map(line("added")));
    text.extend(changed.iter().map(of));
    text + &format!("equal    {equal} tensors\n")
}

fn of(changed: &Changed) -> String {
    let Changed { name, before, after, by } = changed;
    let stored = if before == after { before.clone() } else { format!("{before} -> {after}") };
    let by = match by {
        None => String::new(),
        Some(By { largest, mean, odd: 0 }) => format!(": largest {largest:.3e}, mean {mean:.3e}"),
        Some(By { largest, mean, odd }) => {
            format!(": largest {largest:.3e}, mean {mean:.3e}; {odd} pairs are not both numbers")
        }
    };
    format!("changed  {} ({stored}){by}\n", name.escape_debug())
}
