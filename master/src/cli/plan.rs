//! `cake-master plan`: who would hold what. Changes nothing.
use std::sync::Arc;

use super::args::{ClusterArgs, MODEL, PlanArgs, parse_what_if};
use super::out::{self, Tell};
use super::told::Words;
use super::{Error, announce, report};
use crate::deployment::{PlanRequest, prepare};
use crate::state::State;

/// Arguments of `plan`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Plan as if there were one more worker (such as phone:3GiB); repeatable.
    #[arg(long, value_name = "NAME:SIZE", value_parser = parse_what_if)]
    what_if: Vec<(String, u64)>,
    /// Say what each layer loses by each encoding, measured on a sample of its rows.
    #[arg(long)]
    why: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Plans and prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        let request = PlanRequest {
            predict: true,
            headers_suffice: true,
            why: self.why,
            what_if: self.what_if,
            ..self.plan.try_into()?
        };
        let state = State::open()?;
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let told = Arc::new(Words::unless(self.json));
        let prepared = prepare(state, &self.model, &cluster, &request, told).await?;
        if self.json {
            announce::notes(&prepared);
            return report::print_json(&report::PlanReport::new(&prepared, None));
        }
        announce::announce(&prepared, Tell::Output, "would ")?;
        if let (true, Some(losses)) = (self.why, &prepared.losses) {
            out::line(report::losses_text(losses))?;
        }
        if !request.what_if.is_empty() && !prepared.uses_imagined() {
            let names: Vec<&str> = request.what_if.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(" and ");
            out::line(format_args!("--what-if changes nothing: no layers would go to {names}"))?;
        }
        Ok(())
    }
}
