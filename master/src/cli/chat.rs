//! `cake-master chat MODEL`: turn after turn; what earlier turns computed is not computed again.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::block_in_place;

use super::args::{ClusterArgs, PlanArgs, SampleArgs};
use super::ctrl_c::{CtrlC, Interrupts};
use super::input::Input;
use super::prepare::{prepare, warn};
use super::run::{Writer, check_system, tell_ending};
use super::{Error, out, report};
use crate::generate::{Answer, Finish, Timing};
use crate::scheduler::{
    self, Choice, Event, Goal, Limits, OnLoss, Refusal, Request, Scheduler, Scope,
};
use crate::state::State;
use crate::text::{Message, Text};

/// How to go on once the conversation fills the context.
const WAY_OUT: &str = "start a new chat, with a larger --context if the model has one";

/// One may wait: an answer that was stopped gives its place back a moment later.
const QUEUE: usize = 1;

/// Arguments of `chat`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A checkpoint directory, a .safetensors file, or org/name in the local Hub cache.
    model: String,
    /// A system message before the first turn.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

impl Args {
    /// Talks until the input ends.
    pub(super) async fn run(self, ctrl_c: CtrlC) -> Result<(), Error> {
        let state = State::open()?;
        let history = state.chat_history();
        let (cluster, _door) = self.cluster.whereabouts().await?;
        let prepared = prepare(state, &self.model, &cluster, &self.plan, &[]).await?;
        let checkpoint = &prepared.model.checkpoint;
        let text = block_in_place(|| Text::open(&checkpoint.location.directory))?;
        check_system(self.system.as_deref(), &text)?;
        warn(&text.warnings);
        let sampling = self.sample.options(checkpoint)?;
        let tell = prepared.tell(false);
        let mut pushed = prepared.announce_and_push(tell).await?;
        let pipeline = prepared.open(tell, &mut pushed).await?;
        let ends = prepared.ends()?;
        let limits = Limits::of(prepared.promise(), prepared.chunk(), QUEUE);
        let asking = Asking {
            scheduler: Scheduler::start(pipeline, ends, limits, OnLoss::Fail, Arc::default()),
            choice: Choice { options: sampling, ..Choice::default() },
            max_tokens: self.sample.max_tokens(checkpoint),
            stop_ids: Arc::new(self.sample.stop_ids(checkpoint, text.eos_id())),
            stop: &self.sample.stop,
            text: &text,
        };
        let mut messages: Vec<Message> =
            self.system.iter().map(|content| Message::new("system", content)).collect();
        let mut input = Input::open(history);
        out::note(input.help());
        // It stops an answer from now on.
        let mut interrupts = ctrl_c.take_over();
        loop {
            interrupts.forget(); // A second one was meant for the answer as well.
            // Typing takes its time, on a thread of its own; Ctrl-C is heard meanwhile.
            let typed = tokio::task::spawn_blocking(move || {
                let turn = input.next();
                (input, turn)
            });
            let turn = tokio::select! {
                typed = typed => typed.ok(),
                () = interrupts.next() => return Err(Error::Interrupted),
            };
            let Some((again, Some(turn))) = turn else { return Ok(()) };
            input = again;
            messages.push(Message::new("user", &turn));
            let told =
                asking.answer(block_in_place(|| encode(&text, &messages))?, &mut interrupts).await;
            match told {
                Ok(Told { answer, said, stopped }) => {
                    match stopped {
                        true => out::note("(stopped)"),
                        false => tell_ending(&answer, limits.context, WAY_OUT),
                    }
                    out::note(format_args!(
                        "({})",
                        report::timing_summary(&answer.timing, &pushed)
                    ));
                    messages.push(Message::new("assistant", &said));
                }
                Err(Error::Refused(refusal @ Refusal::PromptTooLong { .. })) => {
                    out::note(format_args!(
                        "{refusal}; your last message is forgotten: make it shorter, or {WAY_OUT}"
                    ));
                    messages.pop();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What all turns share.
struct Asking<'a> {
    scheduler: Scheduler,
    choice: Choice,
    max_tokens: usize,
    stop_ids: Arc<HashSet<u32>>,
    stop: &'a [String],
    text: &'a Text,
}

/// What was answered.
struct Told {
    answer: Answer,
    said: String,
    /// By Ctrl-C.
    stopped: bool,
}

impl Asking<'_> {
    /// Shows the answer to `prompt` as it comes, until it ends or Ctrl-C stops it.
    async fn answer(&self, prompt: Vec<u32>, interrupts: &mut Interrupts) -> Result<Told, Error> {
        let started = Instant::now();
        let prompt_tokens = prompt.len();
        let request = Request {
            prompt,
            max_tokens: self.max_tokens,
            stop_ids: self.stop_ids.clone(),
            goal: Goal::Answer(Box::new(self.choice.clone())),
            scope: Scope::ALL,
        };
        let mut generation = self.scheduler.submit(vec![request])?.remove(0);
        let mut writer = Writer::new(self.text, self.stop, true);
        let mut timing = Timing { prompt_tokens, ..Timing::default() };
        let (mut output_ids, mut logprobs) = (Vec::new(), Vec::new());
        let mut first = started;
        let (finish, stopped) = loop {
            let event = tokio::select! {
                event = generation.next() => event,
                () = interrupts.next() => break (Finish::Stop, true),
            };
            match event {
                Some(Event::Begun { reused_tokens }) => {
                    timing.reused_tokens = reused_tokens;
                    timing.prompt_tokens = prompt_tokens - reused_tokens;
                }
                Some(Event::Token(token)) => {
                    if output_ids.is_empty() {
                        first = Instant::now();
                    }
                    output_ids.push(token.id);
                    logprobs.push(token.logprob);
                    if !writer.token(token.id) {
                        break (Finish::Stop, false);
                    }
                }
                Some(Event::Ended(finish)) => break (finish, false),
                Some(Event::Failed(error)) => return Err(error.into()),
                Some(Event::Embedding(_)) | None => {
                    return Err(scheduler::Error::Panicked.into());
                }
            }
        };
        drop(generation); // Whatever is still computed of it ends now.
        let said = writer.finish()?;
        out::line("")?;
        if !output_ids.is_empty() {
            timing.first_token_seconds = (first - started).as_secs_f64();
            timing.prefill_seconds = timing.first_token_seconds;
            timing.finish(output_ids.len(), first.elapsed());
        }
        let answer = Answer { output_ids, logprobs, finish, prompt_logits: None, timing };
        Ok(Told { answer, said, stopped })
    }
}

/// The conversation as ids; without a template, its plain text.
fn encode(text: &Text, messages: &[Message]) -> Result<Vec<u32>, Error> {
    if text.has_chat_template() {
        return Ok(text.encode_chat(messages)?);
    }
    let plain: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok(text.encode(&plain.join("\n"), true)?)
}
