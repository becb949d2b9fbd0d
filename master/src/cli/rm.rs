//! `cake-master rm ORG/NAME`: takes a model of the Hub's, or a revision of it, off the disk.
use std::path::PathBuf;

use cake_checkpoint::hub_caches;
use cake_checkpoint::units::format_bytes;
use cake_hub::Wanted;
use serde::Serialize;
use tokio::task::block_in_place;

use super::args::of_hub;
use super::{Error, ask, out, report};

/// Arguments of `rm`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The model: ORG/NAME, or ORG/NAME@REVISION for one revision, whose files that others share stay.
    #[arg(value_parser = of_hub)]
    model: Wanted,
    /// Do not ask.
    #[arg(short, long, help_heading = "Output")]
    yes: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// What programs are told.
#[derive(Serialize)]
struct Removed {
    model: String,
    path: PathBuf,
    commits: Vec<String>,
    freed_bytes: u64,
}

impl Args {
    /// Asks, deletes, and says how much is free now.
    pub(super) async fn run(self) -> Result<(), Error> {
        let wanted = &self.model;
        let removal = block_in_place(|| cake_hub::removal(&hub_caches(), wanted))?;
        let bytes = format_bytes(removal.bytes);
        if !self.yes {
            if !ask::somebody() {
                return Err(Error::NotAsked { what: wanted.to_string(), bytes: removal.bytes });
            }
            let question = format!("delete {wanted} ({bytes} in {})?", removal.path.display());
            if !ask::yes(question).await {
                out::note("nothing was deleted");
                return Ok(());
            }
        }
        block_in_place(|| removal.run())?;
        if self.json {
            let (path, commits, freed_bytes) = (removal.path, removal.commits, removal.bytes);
            return report::print_json(&Removed {
                model: wanted.to_string(),
                path,
                commits,
                freed_bytes,
            });
        }
        out::line(format_args!("{wanted} is deleted: {bytes} are free again"))
    }
}
