//! `cake-master push`: plan and push, then leave. The next run finds everything there.
use super::args::{ClusterArgs, PlanArgs};
use super::prepare::prepare;
use super::{Error, report};

/// Arguments of `push`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Plans, pushes, prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        if self.cluster.addresses()?.is_empty() {
            return Err(Error::argument("--worker", "missing", "at least one worker to push to"));
        }
        let prepared = prepare(&self.model, &self.cluster, &self.plan, &[]).await?;
        if !self.json {
            eprint!("{}", report::plan_text(&prepared));
            report::push_forecast(&prepared).iter().for_each(|line| eprintln!("{line}"));
        }
        let pushed = prepared.push(self.json).await?;
        if self.json {
            report::print_json(&report::PlanReport::new(&prepared, Some(&pushed)));
        } else {
            println!("{}", report::push_summary(&pushed));
        }
        Ok(())
    }
}
