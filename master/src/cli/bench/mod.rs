//! `cake-master bench`: how fast this cluster is with this model, and where the time goes.
mod figures;
mod words;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use cake_engine::SamplingOptions;
use tempfile::TempDir;
use tokio::task::block_in_place;

use self::figures::{Bench, Link, Planned};
use super::args::{ClusterArgs, PlanArgs};
use super::out::Tell;
use super::told::Words;
use super::{Error, announce, demo, out, report};
use crate::cluster::link;
use crate::deployment::{PlanRequest, Prepared, prepare};
use crate::generate::{Options, Timing};
use crate::scheduler::Generator;
use crate::state::State;

/// Most runs: more say nothing more.
const MOST_RUNS: usize = 1000;

/// Arguments of `bench`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub(super) struct Args {
    /// What the other commands take as a model; without it, the small one that ships inside.
    pub(super) model: Option<String>,
    /// Length of the prompt (tokens).
    #[arg(long, value_name = "TOKENS", default_value = "256")]
    prompt_tokens: NonZeroUsize,
    /// Length of the answer (tokens), at least 2.
    #[arg(long, value_name = "TOKENS", default_value = "64")]
    answer_tokens: NonZeroUsize,
    /// How often it is run, after one time that does not count.
    #[arg(long, value_name = "N", default_value = "5")]
    runs: NonZeroUsize,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Plans, pushes, measures, prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        let (runs, answer_tokens) = (self.runs.get(), self.answer_tokens.get());
        if runs > MOST_RUNS {
            return Err(Error::argument("--runs", runs, format!("1 to {MOST_RUNS}")));
        }
        if answer_tokens < 2 {
            let expected = "2 or more: the first token's time is the prompt's";
            return Err(Error::argument("--answer-tokens", answer_tokens, expected));
        }
        let home = TempDir::with_prefix("cake-bench-");
        let home = home.map_err(|source| Error::File {
            action: "write",
            path: std::env::temp_dir(),
            source,
        })?;
        let model = match &self.model {
            Some(model) => model.clone(),
            None => demo::unpack(home.path())?.display().to_string(),
        };
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let request = PlanRequest { predict: true, ..self.plan.clone().try_into()? };
        let told = Arc::new(Words::unless(self.json));
        let prepared = prepare(State::open()?, &model, &cluster, &request, told).await?;
        let tell = if self.json { Tell::Nobody } else { Tell::Notes };
        let mut pushed = announce::announce_and_push(&prepared, tell).await?;
        let links = links(&prepared).await?;
        let (pipeline, ends) = prepared.load(&mut pushed).await?;
        let promise = prepared.promise();
        let generator = Generator { pipeline: &pipeline, ends: &ends, promise };
        let options = Options {
            sampling: SamplingOptions::default(),
            max_tokens: answer_tokens,
            stop_ids: HashSet::new(),
            chunk: prepared.chunk(),
            context: promise.context,
            keep_prompt_logits: false,
        };
        let vocab_size = prepared.model.checkpoint.config.vocab_size;
        let mut timings: Vec<Timing> = Vec::with_capacity(runs);
        let mut paces: Vec<Vec<f64>> = Vec::with_capacity(runs);
        for run in 0..=runs {
            let prompt = prompt(self.prompt_tokens.get(), vocab_size);
            let answer = generator.generate(&prompt, &options, |_| true).await?;
            if run == 0 {
                pipeline.paces().forget(); // The first time finds cold caches.
                continue;
            }
            timings.push(answer.timing);
            paces.extend(pipeline.paces().take());
        }
        let planned = Planned::of(prepared.plan());
        let bench =
            Bench::of(&prepared.model.checkpoint.location.name, &timings, &paces, planned, links);
        block_in_place(|| {
            let stages: Option<Vec<f64>> =
                bench.devices.iter().map(|device| device.seconds).collect();
            prepared.learn(stages.as_deref(), bench.master.measured);
        });
        match self.json {
            true => report::print_json(&bench),
            false => out::text(words::text(&bench)),
        }
    }
}

/// Round trip and throughput of each worker of the plan.
async fn links(prepared: &Prepared) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for (stage, member) in prepared.remotes() {
        let (rtt_seconds, bytes_per_second) = link(member).await?;
        links.push(Link { device: stage.device.clone(), rtt_seconds, bytes_per_second });
    }
    Ok(links)
}

/// Ids that no two neighbours share, the same each time.
fn prompt(tokens: usize, vocab_size: usize) -> Vec<u32> {
    /// A prime, so that it goes through all ids of most vocabularies.
    const STRIDE: usize = 7919;
    let id = |index: usize| (index * STRIDE % vocab_size.max(1)) as u32;
    (1..=tokens).map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_of_ids_that_there_are() {
        let ids = prompt(1000, 128);
        assert!(ids.len() == 1000 && ids.iter().all(|id| *id < 128));
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
