//! `cake-master plan`: who would hold what. Changes nothing.
use super::args::{ClusterArgs, PlanArgs, parse_what_if};
use super::out::{self, Tell};
use super::{Error, report};
use crate::deployment::prepare::prepare;
use crate::state::State;

/// Arguments of `plan`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Plan as if there were one more worker (such as phone:3GiB); repeatable.
    #[arg(long, value_name = "NAME:SIZE", value_parser = parse_what_if)]
    what_if: Vec<(String, u64)>,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Plans and prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        let state = State::open()?;
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let plan = PlanArgs { predict: true, ..self.plan };
        let prepared = prepare(state, &self.model, &cluster, &plan, &self.what_if).await?;
        if self.json {
            prepared.tell_notes();
            return report::print_json(&report::PlanReport::new(&prepared, None));
        }
        prepared.announce(Tell::Output, "would ")?;
        if !self.what_if.is_empty() && !prepared.uses_imagined() {
            let names: Vec<&str> = self.what_if.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(" and ");
            out::line(format_args!("--what-if changes nothing: no layers would go to {names}"))?;
        }
        Ok(())
    }
}
