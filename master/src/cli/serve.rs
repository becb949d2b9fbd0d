//! `cake-master serve MODEL`: the OpenAI API, many requests at once.
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use super::args::{ClusterArgs, PlanArgs, SampleArgs};
use super::prepare::{prepare, warn};
use super::{Error, out};
use crate::api::{self, Served};
use crate::scheduler::{Limits, Scheduler};
use crate::state::State;
use crate::text::Text;

/// How long answers that have begun may go on once the server is asked to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// Sequences at once unless told otherwise.
const DEFAULT_PARALLEL: usize = 8;

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    /// Address to listen on (HOST:PORT); port 0 lets the system choose.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Name of the model for clients. Default: that of its directory.
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// A file with one API key per line, of which requests must bring one.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Requests that may wait while as many run as --parallel allows (8 by default); more are refused.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

impl Args {
    /// Serves until `stop` completes.
    pub(super) async fn run(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let keys = self.keys()?;
        // Before anything that takes long: perhaps it cannot be had.
        let failed = |source| Error::Listen { address: self.listen.clone(), source };
        let listener = TcpListener::bind(&self.listen).await.map_err(failed)?;
        let plan =
            PlanArgs { parallel: self.plan.parallel.or(Some(DEFAULT_PARALLEL)), ..self.plan };
        let prepared = prepare(State::open()?, &self.model, &self.cluster, &plan, &[]).await?;
        let checkpoint = &prepared.model.checkpoint;
        let text = Text::open(&checkpoint.location.directory)?;
        warn(&text.warnings);
        let sample = SampleArgs::default();
        let defaults = sample.options(checkpoint)?;
        let stop_ids = Arc::new(sample.stop_ids(checkpoint, text.eos_id()));
        let directory = checkpoint.location.directory.file_name();
        let name = self.model_name.unwrap_or_else(|| {
            directory.map_or("model".into(), |name| name.to_string_lossy().into_owned())
        });
        let tell = prepared.tell(false);
        let mut pushed = prepared.announce_and_push(tell).await?;
        let pipeline = prepared.open(tell, &mut pushed).await?;
        let stages = pipeline.stages().to_vec();
        let ends = prepared.ends()?;
        let promise = prepared.promise;
        let limits = Limits {
            context: promise.context,
            parallel: promise.parallel,
            kv_blocks: promise.kv_blocks(),
            chunk: prepared.chunk,
            prompt_rows: promise.chunk,
            queue: self.queue,
        };
        let scheduler = Scheduler::start(pipeline, ends, limits);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let served = Served { name, created, text, scheduler, defaults, stop_ids, stages, keys };
        let address = listener.local_addr().map_err(failed)?;
        out::line(format_args!("listening on http://{address}"))?;
        let router = api::router(Arc::new(served));
        let (tell, told) = tokio::sync::oneshot::channel();
        let stopped = async move {
            stop.await;
            tell.send(()).ok(); // Nobody listens if the server has ended meanwhile.
        };
        let late = async {
            told.await.ok();
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            ended = axum::serve(listener, router).with_graceful_shutdown(stopped).into_future() => {
                ended.map_err(failed)
            }
            () = late => Ok(()), // What is not answered by now sees its connection closed.
        }
    }

    /// The keys of the file, if there is one.
    fn keys(&self) -> Result<Vec<String>, Error> {
        let Some(path) = &self.api_key_file else { return Ok(Vec::new()) };
        let failed = |source| Error::File { action: "read", path: path.clone(), source };
        let content = std::fs::read_to_string(path).map_err(failed)?;
        let lines = content.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys: Vec<String> = lines.map(str::to_owned).collect();
        match keys.is_empty() {
            true => {
                Err(Error::argument("--api-key-file", path.display(), "a file with a key in it"))
            }
            false => Ok(keys),
        }
    }
}
