//! Arguments that several commands share, and what they become once checked.
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::parse_bytes;
use cake_checkpoint::{Checkpoint, KvDtype, LayerRange, keeper};
use cake_engine::{Numerics, SamplingOptions, Weights};
use cake_hub::Wanted;
use cake_proto::WireFormat;
use clap::Args;

use super::told::Words;
use super::{Error, out};
use crate::calibration::Sample;
use crate::cluster::{Whereabouts, found};
use crate::deployment::door::{self, Door};
use crate::deployment::{Encode, PlanRequest, WrongArgument};
use crate::membership::Membership;
use crate::place::OwnWeights;
use crate::planner::Pin;

/// What a command's model may be: what [`cake_checkpoint::locate()`] finds.
pub(super) const MODEL: &str = "A checkpoint directory (safetensors or GGUF files), a .safetensors, .gguf or .apr file, \
    org/name of a model of the Hub, or ollama:NAME or lmstudio:NAME of one that these programs keep here";

/// A model of the Hub's, which `pull` brings and `rm` deletes.
///
/// # Errors
/// In words, if it is no name of one.
pub(super) fn of_hub(text: &str) -> Result<Wanted, String> {
    match keeper(text) {
        Some(program) => Err(format!("what {program} keeps, {program} alone brings and deletes")),
        None => text.parse().map_err(|error: cake_hub::Error| error.to_string()),
    }
}

/// Largest prompt chunk and number of sequences accepted.
const MAX_CHUNK: usize = 4096;
/// No device needs a finer one.
const MAX_SLICES: usize = 64;
const MAX_PARALLEL: usize = 1024;

/// Longest that members may take to be found that are not where they were, or to open connections.
const GATHER: Duration = Duration::from_secs(5);

/// Where the workers are.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Workers")]
pub(super) struct ClusterArgs {
    /// A worker's address (HOST:PORT); repeat it, or separate several by commas. Default: the members of this
    /// master's cluster.
    #[arg(long = "worker", value_name = "ADDR", env = "CAKE_WORKERS", value_delimiter = ',')]
    pub workers: Vec<String>,
    /// A file with one worker's address per line. Default: none.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Use no workers, not even those that joined.
    #[arg(long, conflicts_with_all = ["workers", "cluster"])]
    pub alone: bool,
    /// Speak with workers in plain text, wherever they are and whoever answers there.
    #[arg(long)]
    pub insecure: bool,
    /// Address of the door: workers join there, and those that the master cannot connect to connect there
    /// (HOST:PORT). Default: 0.0.0.0:7116, open while `serve` runs if there is an authority, else while a member
    /// needs it.
    #[arg(long, value_name = "ADDR", conflicts_with = "insecure")]
    pub join: Option<String>,
    /// Neither look for members on this network nor be found there by multicast DNS while the door is open.
    #[arg(long)]
    pub no_discovery: bool,
}

impl ClusterArgs {
    /// The workers that are meant: those at the addresses given, or else those that joined; and the door while it
    /// is needed to reach them.
    ///
    /// # Errors
    /// The cluster file or the authority cannot be used, plain text would go over a network unasked, or the door
    /// cannot be opened where it was asked for.
    pub(super) async fn whereabouts(&self) -> Result<(Whereabouts, Option<Door>), Error> {
        let cluster = self.workers().await?;
        match self.join.is_some() || cluster.needs_lines() {
            true => self.with_door(cluster, Words::loud()).await,
            false => Ok((cluster, None)),
        }
    }

    /// The same, and the door anyway if there is an authority; `told` who joins there.
    ///
    /// # Errors
    /// As [`ClusterArgs::whereabouts`].
    pub(super) async fn whereabouts_with_door(
        &self,
        told: Words,
    ) -> Result<(Whereabouts, Option<Door>), Error> {
        self.with_door(self.workers().await?, told).await
    }

    /// Opens the door, and gives members that are not where they were the time to come to it.
    async fn with_door(
        &self,
        cluster: Whereabouts,
        told: Words,
    ) -> Result<(Whereabouts, Option<Door>), Error> {
        let membership = &cluster.membership;
        let door = door::open(membership, self.join.as_deref(), !self.no_discovery, Arc::new(told))
            .await?;
        if let Some(door) = &door
            && (door.discovers && cluster.is_of_members() || cluster.needs_lines())
        {
            found::gather(membership, GATHER).await;
        }
        Ok((cluster, door))
    }

    /// The failure of a command that has no worker to do its `action` with.
    pub(super) fn nobody(&self, action: &'static str, cluster: &Whereabouts) -> Error {
        let why = match (self.alone, cluster.membership.authority()) {
            (true, _) => "--alone leaves all of them out",
            (false, Some(_)) => {
                "nobody has joined yet (`cake-master token` lets a worker in), and no --worker is given"
            }
            (false, None) => {
                "this master has no cluster yet (`cake-master init` makes one), and no --worker is given"
            }
        };
        Error::NoWorkers { action, why: why.to_owned() }
    }

    async fn workers(&self) -> Result<Whereabouts, Error> {
        let typed = match self.alone {
            true => Vec::new(),
            false => crate::cluster::addresses::gather(&self.workers, self.cluster.as_deref())?,
        };
        if !self.insecure {
            let membership = Membership::open()?;
            membership.check(&typed).await?;
            return Ok(Whereabouts::new(membership, typed, self.alone));
        }
        let membership = Membership::default();
        if membership.check(&typed).await.is_err() {
            out::note("WARNING: connections to workers are in plain text (--insecure)");
        }
        Ok(Whereabouts::new(membership, typed, self.alone))
    }
}

/// What is promised, and who may hold what.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(super) struct PlanArgs {
    /// Longest sequence to make room for (tokens); a model that has less, where several are served, gets what it
    /// has. Default: what the model has, at most 4096.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Of the longest sequences, make room for so many at once. Shorter ones, with the answer that they may come to
    /// have, take less, and as many run as there is room for. Default: 8 to serve, else 1.
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,
    /// How keys and values of past tokens are kept: f32, f16 in half the bytes, or q8 in a little more than a quarter, as
    /// 8-bit codes that share a scale by 32. Longer contexts and more answers at once fit so; q8 rounds, which changes some
    /// answers a little. `plan` says how many bytes and how much error. Default: f16, or f32 with --numerics exact.
    #[arg(long, value_name = "f32|f16|q8")]
    pub kv: Option<KvDtype>,
    /// Turn weights into 8, 6, 5 or 4 bits on their way to the workers, or into numbers of 4 bits (mxfp4); embedding and
    /// head then have 8. What was codes before somebody widened it becomes those again in 8 to 4 bits. auto takes the widest that fits, and
    /// layers that lose most get more where memory is left.
    #[arg(long, value_name = "as-stored|q8|q6|q5|q4|mxfp4|auto", default_value = "as-stored")]
    pub encode: Encode,
    /// Run a text through the model before its weights are turned into 6, 5 or 4 bits, so that they are off where that text
    /// needs them least: its first 2048 tokens, in UTF-8. That takes the master some seconds for each billion weights, and
    /// is remembered; to turn them into fewer bits takes several times as long then. For q6, q5, q4 and auto. Default: all errors count the same.
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Arithmetic: exact keeps activations in f32; beside bf16 weights, fast rounds those of
    /// prompts to one or two bf16 and others to two, and beside 8- and 4-bit weights all to 16 bits,
    /// where that is faster. int8 rounds those of MLPs to 8 bits beside most weights of at most 6 bits, which is
    /// faster with AVX2 or AVX512-VNNI and may cost about as much as 8 bits of weights do.
    #[arg(
        long,
        value_name = "fast|exact|int8",
        default_value = "fast",
        overrides_with = "numerics"
    )]
    pub numerics: Numerics,
    /// Prompt tokens in one step. Default: 512 where the master computes every layer; else by the
    /// number of stages and the length of the prompt, 64 to 256.
    #[arg(long, value_name = "TOKENS")]
    pub chunk: Option<usize>,
    /// How activations travel between machines: f32 as they are; bf16 in half the bytes; q8 in about
    /// a quarter, as 8-bit codes that share a scale by 64. With bf16 and q8 every hop rounds them, so
    /// that answers differ a little with how the layers are split; with f32 no split
    /// over equal processors changes anything.
    #[arg(long, value_name = "f32|bf16|q8", default_value = "f32")]
    pub wire: WireFormat,
    /// Memory the master itself may use for layers (such as 2GiB).
    /// Default: without workers, what this machine or its cgroup has free less a reserve, embedding and head
    /// included; with workers 0.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub local_memory: Option<u64>,
    /// Where the master's own layers and its output head lie: map uses them in the checkpoint's files,
    /// whose pages the system may drop; copy puts them into as many bytes of memory, in huge pages,
    /// which some systems read faster; auto copies where a short measurement says that it pays.
    #[arg(long, value_name = "map|copy|auto", default_value_t)]
    pub weights: Weights,
    /// Keep the master's own weights in memory: the system neither drops nor swaps their pages.
    #[arg(long)]
    pub lock_memory: bool,
    /// Give a worker exactly these layers (such as phone=0..8); repeatable.
    #[arg(long, value_name = "NAME=A..B", value_parser = parse_pin)]
    pub place: Vec<(String, LayerRange)>,
    /// Part each layer that has experts: attention, and its experts in so many slices; --place then counts these parts.
    /// 1 never parts a layer. Default: where no device has room for some layer, as few slices as fit (2, 4, 8 or 16).
    #[arg(long, value_name = "N")]
    pub expert_slices: Option<usize>,
    /// Leave a worker out; repeatable.
    #[arg(long, value_name = "NAME")]
    pub exclude: Vec<String>,
    /// Time the workers again even if they were timed before.
    #[arg(long)]
    pub reprobe: bool,
}

/// Reads the text of --calibrate, where something comes of it: with `encodings` alone.
pub(super) fn sample(path: &Path, weighs: bool, encodings: &str) -> Result<Sample, WrongArgument> {
    let refused = |expected| WrongArgument::new("--calibrate", path.display(), expected);
    if !weighs {
        return Err(refused(format!("nothing, as it is for {encodings} alone")));
    }
    Sample::read(path).map_err(|error| refused(format!("a text in UTF-8: {error}")))
}

impl TryFrom<PlanArgs> for PlanRequest {
    type Error = WrongArgument;

    fn try_from(args: PlanArgs) -> Result<Self, WrongArgument> {
        let within = |argument, found: Option<usize>, most: usize| {
            let Some(found) = found else { return Ok(None) };
            let within = NonZeroUsize::new(found).filter(|found| found.get() <= most);
            let refusal = || WrongArgument::new(argument, found, format!("1 to {most}"));
            within.ok_or_else(refusal).map(Some)
        };
        let (weighs, encodings) = (args.encode.weighs_errors(), "--encode q6, q5, q4 or auto");
        let sample = |path: PathBuf| sample(&path, weighs, encodings).map(Arc::new);
        let calibrate = args.calibrate.map(sample);
        Ok(Self {
            context: args.context,
            parallel: within("--parallel", args.parallel, MAX_PARALLEL)?,
            kv: args.kv,
            encode: args.encode,
            calibrate: calibrate.transpose()?,
            numerics: args.numerics,
            chunk: within("--chunk", args.chunk, MAX_CHUNK)?,
            wire: args.wire,
            local_memory: args.local_memory,
            own_weights: Arc::new(OwnWeights::new(args.weights, args.lock_memory)),
            pins: args.place.into_iter().map(|(device, layers)| Pin { device, layers }).collect(),
            slices: within("--expert-slices", args.expert_slices, MAX_SLICES)?,
            exclude: args.exclude,
            reprobe: args.reprobe,
            ..Self::default()
        })
    }
}

/// How tokens are chosen; what is not given comes from the model's generation_config.json.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Answer")]
pub(super) struct SampleArgs {
    /// Most new tokens. Default: the model's, else 512.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Randomness: 0 takes the likeliest token every time. Default: the model's if its file says that it samples, else 0.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Choose among the N likeliest tokens; 0 for all. Default: the model's, else 0.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together have this probability; 1 for all. Default: the
    /// model's, else 1.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Leave out tokens less likely than this fraction of the likeliest; 0 for none. Default: the
    /// model's, else 0.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Make tokens that occurred already less likely; 1 for no change. Default: the model's, else 1.
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same answer. Default: a new one each time.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End the answer at this text; repeatable.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on past the model's end token.
    #[arg(long)]
    pub ignore_eos: bool,
}

/// New tokens when neither the person nor the model says how many.
const DEFAULT_MAX_TOKENS: usize = 512;

impl SampleArgs {
    /// The options in force for this model.
    pub(super) fn options(&self, checkpoint: &Checkpoint) -> Result<SamplingOptions, Error> {
        let model = &checkpoint.generation;
        let sampling = model.do_sample == Some(true) || self.temperature.is_some_and(|t| t > 0.0);
        let default =
            |value: Option<f32>, neutral| if sampling { value.unwrap_or(neutral) } else { neutral };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let options = SamplingOptions {
            temperature: self
                .temperature
                .unwrap_or(default(model.temperature, if sampling { 1.0 } else { 0.0 })),
            top_k: self.top_k.unwrap_or(if sampling { model.top_k.unwrap_or(0) } else { 0 }),
            top_p: self.top_p.unwrap_or(default(model.top_p, 1.0)),
            min_p: self.min_p.unwrap_or(default(model.min_p, 0.0)),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(model.repetition_penalty.unwrap_or(1.0)),
            seed: self.seed.unwrap_or(time.as_nanos() as u64 & 0xffff_ffff),
        };
        let check = |argument, value: f32, low: f32, high: f32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::argument(argument, value, format!("{low} to {high}")))
        };
        check("--temperature", options.temperature, 0.0, 100.0)?;
        check("--top-p", options.top_p, 0.0, 1.0)?;
        check("--min-p", options.min_p, 0.0, 1.0)?;
        check("--repetition-penalty", options.repetition_penalty, 0.01, 100.0)?;
        Ok(options)
    }

    /// Most new tokens for this model.
    pub(super) fn max_tokens(&self, checkpoint: &Checkpoint) -> usize {
        self.max_tokens.or(checkpoint.generation.max_new_tokens).unwrap_or(DEFAULT_MAX_TOKENS)
    }

    /// Ids that end the answer.
    pub(super) fn stop_ids(&self, checkpoint: &Checkpoint, eos: Option<u32>) -> HashSet<u32> {
        if self.ignore_eos {
            return HashSet::new();
        }
        checkpoint.stop_token_ids().into_iter().chain(eos).collect()
    }
}

/// `phone=0..8`
fn parse_pin(text: &str) -> Result<(String, LayerRange), String> {
    let expected = || format!("expected NAME=A..B, such as phone=0..8, found {text:?}");
    let (name, layers) = text.split_once('=').ok_or_else(expected)?;
    let layers = layers.parse().map_err(|_| expected())?;
    Ok((name.to_owned(), layers))
}

/// `phone:3GiB`
pub(super) fn parse_what_if(text: &str) -> Result<(String, u64), String> {
    let expected = || format!("expected NAME:SIZE, such as phone:3GiB, found {text:?}");
    let (name, size) = text.rsplit_once(':').ok_or_else(expected)?;
    let bytes = parse_bytes(size).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), bytes))
}
