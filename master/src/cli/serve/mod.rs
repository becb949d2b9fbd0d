//! `cake-master serve [MODEL]...`: the OpenAI API and others, many requests at once, for one model or those at hand.
mod load;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Method};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::block_in_place;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use self::load::Loader;
use super::args::{ClusterArgs, MODEL, PlanArgs};
use super::ctrl_c::{CtrlC, Interrupts};
use super::listen::bind;
use super::told::Words;
use super::{Error, out};
use crate::api::{self, Bodies, Bounds, Desk, Server, Stop, Store};
use crate::aside::tidy;
use crate::board::Board;
use crate::cluster::Whereabouts;
use crate::deployment::fits::Fits;
use crate::deployment::trust::Trust;
use crate::deployment::{PlanRequest, master_name};
use crate::request_id;
use crate::scheduler;
use crate::service::Changer;
use crate::shelf::{Keep, Shelf, Source};
use crate::sign::{ServiceSign, Sign};
use crate::state::State;

/// How long answers that have begun may go on once the server is asked to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// How long clients may take to be told that the scheduler has ended, before the server ends as well.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Where Ollama listens, and programs that are made for it ask.
const OLLAMA_PORT: u16 = 11434;
/// Sequences at once unless told otherwise.
const DEFAULT_PARALLEL: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not 0");

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Service")]
pub(super) struct Args {
    #[arg(value_name = "MODEL", help = format!("{MODEL}. Of several, each is loaded when a request names it: beside the \
        others where there is room, else in the place of that which was not used for the longest time. Default: the models of --models, else those of the Hub's cache, and of Ollama and LM Studio"))]
    pub(super) models: Vec<String>,
    /// Serve each model in this directory as well: its directories and files; repeatable.
    #[arg(long = "models", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// How long a model stays loaded after its last use, where requests do not say: a duration (5m), a number of seconds, or
    /// forever, which is until another one needs its room.
    #[arg(long, value_name = "DURATION", default_value = "forever")]
    keep_alive: Keep,
    /// Address to listen on (HOST:PORT, or PORT for this machine alone); port 0 lets the system choose.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Listen there as well, for programs that are made for Ollama (HOST:PORT, or PORT for this machine alone).
    /// Default: nowhere; without an address, port 11434 of the host of --listen, which such programs ask.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    ollama: Option<String>,
    /// Name of the model for clients, where one alone is served. Default: ORG/NAME of the Hub's, NAME of another program's, what a GGUF file calls
    /// itself, else that of its directory.
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// A file with one API key per line, of which requests must bring one. Default: none is asked for.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let requests with different keys share in the KV cache what their prompts begin with. How many tokens were
    /// cached then tells the user of one key what others have asked. Default: within a key only.
    #[arg(long, requires = "api_key_file")]
    share_prefixes: bool,
    /// Requests that may wait for room in the KV cache, and for other models; more are refused.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// Most new tokens of an answer in a chat whose request does not say. Default: what the model's
    /// generation_config.json says, else half of the context, at most 4096.
    #[arg(long, value_name = "N")]
    default_max_tokens: Option<NonZeroUsize>,
    /// An origin whose pages may ask this server, or a name of its own, as http://workstation:8080; * for all; repeatable.
    /// Without keys it answers to localhost, IP addresses and these names alone. Default: none.
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// How long requests may wait for a lost worker, or for others to take its place (seconds).
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    grace: u64,
    /// Keep copies of blobs in other workers' stores, so that nothing has to be pushed when one of them is lost.
    #[arg(long)]
    spares: bool,
    /// Read control tokens such as <|im_end|> in messages as what they are, not as text: whoever may ask can
    /// then speak for anybody in a conversation.
    #[arg(long)]
    allow_special_tokens: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

impl Args {
    /// Serves until it is asked to stop: once for answers that have begun to go on for a while, twice to
    /// end at once.
    pub(super) async fn run(self, ctrl_c: CtrlC) -> Result<(), Error> {
        let keys = self.keys()?;
        let bounds = Bounds::of_this_machine();
        // Before anything that takes long: perhaps it cannot be had.
        let (listener, address) = bind("--listen", &self.listen).await?;
        let (ollama, ollama_address) = self.listen_as_ollama(address).await?.unzip();
        let listeners = [listener].into_iter().chain(ollama).collect();
        let shelf = Arc::new(self.shelf()?);
        let only = shelf.only();
        let board = Arc::new(Board::new(only.as_ref().map_or("", |model| &model.name)));
        let (desk, wanted) = Desk::new(self.queue, self.keep_alive);
        let desk = Arc::new(desk);
        let (tell, stopping) = watch::channel(Stop::No);
        let server = Arc::new(Server {
            board: board.clone(),
            keys,
            share_prefixes: self.share_prefixes,
            origins: self.cors_origin.clone(),
            shelf: shelf.clone(),
            fits: Fits::new(self.request(&shelf)?),
            desk: desk.clone(),
            pulls: Arc::new(Semaphore::new(1)),
            stopping,
            bodies: Bodies::default(),
            responses: Store::default(),
            membership: OnceLock::new(),
        });
        let router = self.router(&server)?;
        if let Some(remark) = bounds.remark() {
            out::note(format_args!("warning: {remark}"));
        }
        out::note(format_args!("the page is at http://{address}/"));
        if let Some(address) = ollama_address {
            out::note(format_args!("programs made for Ollama are answered at http://{address}"));
        }
        let http = tokio::spawn(api::serve(listeners, bounds, server.clone(), router));
        let url = format!("http://{address}");
        // It tells from now on how far it is.
        let _sign = block_in_place(|| put_up(&ServiceSign { url, master: master_name() }));
        let (cluster, _door) =
            self.cluster.whereabouts_with_door(Words::kept(&board.chronicle)).await?;
        server.membership.set(cluster.membership.clone()).ok(); // Nobody else sets it.
        server.fits.over(cluster.clone());
        let mut loader = self.loader(cluster, &shelf)?;
        let first = match &only {
            Some(model) => {
                let monitor = board.begins(&model.name);
                let loaded = loader.first(model, &monitor).await?;
                Some((monitor, loaded))
            }
            None => {
                out::note(format_args!("{}", at_hand(&block_in_place(|| shelf.names()))));
                None
            }
        };
        let changer = Changer::without(desk.clone(), wanted, board, loader);
        let changer = match first {
            Some((monitor, loaded)) => changer.with(monitor, loaded),
            None => changer,
        };
        desk.open();
        tokio::spawn(end(ctrl_c.take_over(), desk, tell));
        tokio::spawn(tidy());
        out::line(format_args!("listening on http://{address}"))?;
        let http = async {
            http.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        };
        while_whole(http, changer.run()).await
    }

    /// The models at hand: those that are named, else those of the Hub's cache and of other programs.
    fn shelf(&self) -> Result<Shelf, Error> {
        let named = self.models.iter().cloned().map(Source::Named);
        let sources = named.chain(self.folders.iter().cloned().map(Source::Folder));
        let mut sources: Vec<Source> = sources.collect();
        if let Some(name) =
            self.model_name.as_ref().filter(|_| !matches!(sources[..], [Source::Named(_)]))
        {
            return Err(Error::argument("--model-name", name, "it beside one MODEL alone"));
        }
        if sources.is_empty() {
            sources.extend([Source::Hub, Source::Kept]);
        }
        Ok(block_in_place(|| Shelf::open(sources, self.model_name.clone()))?)
    }

    /// What is asked of each plan of these models.
    fn request(&self, shelf: &Shelf) -> Result<PlanRequest, Error> {
        let asked = PlanRequest::try_from(self.plan.clone())?;
        if asked.context == Some(0) {
            return Err(Error::argument("--context", 0, "1 or more")); // No model has to be looked at.
        }
        let parallel = asked.parallel.or(Some(DEFAULT_PARALLEL));
        Ok(PlanRequest { parallel, of_several: shelf.only().is_none(), ..asked })
    }

    /// What loads these models over these workers.
    fn loader(&self, cluster: Whereabouts, shelf: &Shelf) -> Result<Loader, Error> {
        let predict = !cluster.addresses().is_empty();
        Ok(Loader {
            request: PlanRequest { predict, ..self.request(shelf)? },
            cluster,
            trust: Trust::new(),
            queue: self.queue,
            default_max_tokens: self.default_max_tokens,
            allow_special_tokens: self.allow_special_tokens,
            spares: self.spares,
            grace: Duration::from_secs(self.grace),
        })
    }

    /// Listens where Ollama would, on the host of `address` unless told otherwise, if that is asked for.
    async fn listen_as_ollama(
        &self,
        address: SocketAddr,
    ) -> Result<Option<(TcpListener, SocketAddr)>, Error> {
        let Some(given) = &self.ollama else { return Ok(None) };
        bind("--ollama", &ollama_address(given, address)).await.map(Some)
    }

    /// What answers requests, also those of pages from other origins if they may ask.
    fn router(&self, server: &Arc<Server>) -> Result<Router, Error> {
        let router = api::router(server.clone());
        if self.cors_origin.is_empty() {
            return Ok(router);
        }
        let any = self.cors_origin.iter().any(|origin| origin == "*");
        let parse = |origin: &String| {
            let expected = "an origin such as https://example.org, or *";
            let refused = || Error::argument("--cors-origin", origin, expected);
            origin.parse::<HeaderValue>().map_err(|_| refused())
        };
        let origins = match any {
            true => AllowOrigin::any(),
            false => {
                let origins = self.cors_origin.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
                AllowOrigin::list(origins)
            }
        };
        let cors = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // Clients send headers of their own beside a key; who may ask at all is said by the origin.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([request_id::HEADER]);
        Ok(router.layer(cors))
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

/// Where to listen as Ollama does: there, or at its port of the host that the server listens on.
fn ollama_address(given: &str, server: SocketAddr) -> String {
    match given {
        "" => SocketAddr::new(server.ip(), OLLAMA_PORT).to_string(),
        given => given.to_owned(),
    }
}

/// What can be asked for, in a line.
fn at_hand(names: &[String]) -> String {
    match names {
        [] => "no model is at hand: `cake-master pull ORG/NAME` brings one".to_owned(),
        names => format!("at hand, each loaded when it is asked for: {}", names.join(", ")),
    }
}

/// Serves until that ends, or until nothing can be answered any more, as never happens while all is well: `broken` then
/// says why.
async fn while_whole(
    http: impl Future<Output = ()>,
    broken: impl Future<Output = scheduler::Error>,
) -> Result<(), Error> {
    let broken = async {
        let error = broken.await;
        tokio::time::sleep(LAST_WORDS).await;
        error
    };
    tokio::select! {
        () = http => Ok(()),
        error = broken => Err(error.into()),
    }
}

/// Asks the server to end: at the first interrupt when its answers are out, at the second one, or when they take too
/// long, at once.
async fn end(mut interrupts: Interrupts, desk: Arc<Desk>, tell: watch::Sender<Stop>) {
    interrupts.next().await;
    let answers = || {
        let load = desk.load()?;
        match load.running + load.waiting {
            0 => None,
            1 => Some("1 answer".to_owned()),
            several => Some(format!("{several} answers")),
        }
    };
    if let Some(answers) = answers() {
        let seconds = LAST_ANSWERS.as_secs();
        out::note(format_args!(
            "finishing {answers}, for {seconds} s at most; Ctrl-C again ends them at once"
        ));
    }
    tell.send_replace(Stop::Soon);
    let why = tokio::select! {
        () = tokio::time::sleep(LAST_ANSWERS) => "they took too long",
        () = interrupts.next() => "Ctrl-C again",
        () = tell.closed() => return, // All answers are out.
    };
    if let Some(answers) = answers() {
        out::note(format_args!("ended {answers} early: {why}"));
    }
    // Whoever interrupts once more wants the program to end, whatever it does.
    tell.send_replace(Stop::Now);
}

/// Tells other commands of this master that the service is there; without that it serves as well.
fn put_up(service: &ServiceSign) -> Option<Sign> {
    let state = State::open().ok()?;
    let put = Sign::put(state.directory(), service);
    put.inspect_err(|error| tracing::warn!(%error, "other commands will not know of this service"))
        .ok()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::scheduler::tests::{Bench, LIMIT};

    #[test]
    fn without_an_address_it_is_ollamas_port_of_the_same_host() {
        for (server, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:11434"),
            ("0.0.0.0:80", "0.0.0.0:11434"),
            ("[::1]:8080", "[::1]:11434"),
        ] {
            assert_eq!(ollama_address("", server.parse().expect("an address")), expected);
        }
        let given = ollama_address("11435", ([127, 0, 0, 1], 8080).into());
        assert_eq!(given, "11435");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_end_of_the_scheduler_ends_the_service() {
        let scheduler = Bench::new(1, 128).scheduler().await;
        let served = while_whole(async {}, pending()).await;
        assert!(served.is_ok(), "{served:?}");
        scheduler.panic();
        let served = tokio::time::timeout(LIMIT, while_whole(pending(), scheduler.ended()));
        let error = served.await.expect("in time").expect_err("nothing can be answered");
        assert!(matches!(error, Error::Answer(_)), "{error:?}");
    }

    #[test]
    fn what_is_at_hand_is_told() {
        assert!(at_hand(&[]).contains("cake-master pull"));
        assert!(at_hand(&["a".into(), "b".into()]).ends_with(": a, b"));
    }
}
