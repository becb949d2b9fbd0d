//! `cake-master push`: plan and push, then leave. The next run finds everything there.
use std::sync::Arc;

use super::args::{ClusterArgs, MODEL, PlanArgs};
use super::out::Tell;
use super::told::Words;
use super::{Error, announce, report};
use crate::deployment::{PlanRequest, prepare};
use crate::state::State;

/// Arguments of `push`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Plans, pushes, prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        let request = PlanRequest { predict: true, ends_roughly: true, ..self.plan.try_into()? };
        let (cluster, _door) = self.cluster.whereabouts().await?;
        if cluster.addresses().is_empty() {
            return Err(self.cluster.nobody("push to", &cluster));
        }
        let told = Arc::new(Words::unless(self.json));
        let prepared = prepare(State::open()?, &self.model, &cluster, &request, told).await?;
        let tell = if self.json { Tell::Nobody } else { Tell::Output };
        let pushed = announce::announce_and_push(&prepared, tell).await?;
        if self.json {
            report::print_json(&report::PlanReport::new(&prepared, Some(&pushed)))?;
        }
        Ok(())
    }
}
