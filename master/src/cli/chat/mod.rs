//! `cake-master chat MODEL`: turn after turn; what earlier turns computed is not computed again, and once the context is
//! full the oldest are left out. What begins with a slash is for the program (`commands`).
mod commands;
mod conversation;

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::block_in_place;

use self::commands::{HELP, Typed};
use self::conversation::Conversation;
use super::args::{ClusterArgs, MODEL, PlanArgs, SampleArgs};
use super::ctrl_c::{CtrlC, Interrupts};
use super::input::Input;
use super::run::{Writer, Written, check_system, tell_ending};
use super::told::{Words, warn};
use super::{Error, announce, out, report};
use crate::deployment::facts::PushReport;
use crate::deployment::{PlanRequest, Prepared, prepare};
use crate::generate::{Answer, Finish, Timing};
use crate::pipeline::Paces;
use crate::scheduler::{
    self, Choice, Event, Goal, Limits, OnLoss, Refusal, Request, Scheduler, Scope,
};
use crate::state::State;
use crate::text::{ChatPrompt, Message, Text};

/// How to go on where there is no turn to be left out.
const MORE_ROOM: &str = "a larger --context has more room, if the model has one";

/// One may wait: an answer that was stopped gives its place back a moment later.
const QUEUE: usize = 1;

/// Arguments of `chat`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Conversation")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(in crate::cli) model: String,
    /// A system message before the first turn. Default: none.
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
        let predict = !cluster.addresses().is_empty();
        let request = PlanRequest { predict, ..self.plan.clone().try_into()? };
        let told = Arc::new(Words::loud());
        let prepared = prepare(state, &self.model, &cluster, &request, told).await?;
        let checkpoint = &prepared.model.checkpoint;
        let text = block_in_place(|| Text::of(&checkpoint.texts))?;
        check_system(self.system.as_deref(), &text)?;
        warn(&text.warnings);
        let sampling = self.sample.options(checkpoint)?;
        let tell = announce::tell_of(&prepared, false);
        let mut pushed = announce::announce_and_push(&prepared, tell).await?;
        let (pipeline, ends) = prepared.load(&mut pushed).await?;
        let paces = pipeline.paces();
        let limits = Limits::of(prepared.promise(), prepared.chunk(), QUEUE);
        let asking = Asking {
            scheduler: Scheduler::start(pipeline, ends, limits, OnLoss::Fail, Arc::default()),
            choice: Choice { options: sampling, ..Choice::default() },
            max_tokens: self.sample.max_tokens(checkpoint),
            stop_ids: Arc::new(self.sample.stop_ids(checkpoint, text.eos_id())),
            stop: &self.sample.stop,
            text: &text,
        };
        let context = limits.context;
        let talk = Talk { asking, context, pushed, prepared: &prepared, paces };
        let conversation = Conversation::new(self.system.clone());
        // It stops an answer from now on.
        talk.run(conversation, Input::open(history), ctrl_c.take_over()).await
    }
}

/// A conversation under way.
struct Talk<'a> {
    asking: Asking<'a>,
    /// Tokens that a sequence may have.
    context: usize,
    pushed: PushReport,
    prepared: &'a Prepared,
    /// How long stages take, which the next plan is to know.
    paces: Paces,
}

impl Talk<'_> {
    /// Talks until the input ends.
    async fn run(
        &self,
        mut conversation: Conversation,
        mut input: Input,
        mut interrupts: Interrupts,
    ) -> Result<(), Error> {
        out::note(input.help());
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
            match Typed::parse(&turn) {
                Typed::Say(question) => {
                    self.turn(&mut conversation, question, &mut interrupts).await?;
                }
                Typed::Clear => {
                    conversation.clear();
                    out::note("(the conversation begins again)");
                }
                Typed::System(Some(_)) if !self.asking.text.has_chat_template() => {
                    out::note(
                        "(this model has no chat template, so there is no place for a system message)",
                    );
                }
                Typed::System(system) => {
                    out::note(match system {
                        Some(_) => "(this is the system message from now on)",
                        None => "(there is no system message from now on)",
                    });
                    conversation.set_system(system);
                }
                Typed::Save(path) => match block_in_place(|| conversation.save(&path)) {
                    Ok(()) => out::note(format_args!("(written to {})", path.display())),
                    Err(error) => {
                        out::note(format_args!("(cannot write {}: {error})", path.display()));
                    }
                },
                Typed::Thoughts => out::note(match conversation.thought() {
                    "" => "(there are none)",
                    thought => thought,
                }),
                Typed::Help => out::note(HELP),
                Typed::Wrong(why) => out::note(format_args!("({why})")),
            }
        }
    }

    /// Asks one question and shows its answer.
    async fn turn(
        &self,
        conversation: &mut Conversation,
        question: String,
        interrupts: &mut Interrupts,
    ) -> Result<(), Error> {
        let context = self.context;
        // An answer of the usual length has room, or of a quarter of the context.
        let answer = self.asking.max_tokens.min(context / 4).max(1);
        let most = context.saturating_sub(answer);
        let (fitted, thinks) = {
            let thinks = Cell::new(None);
            let encode = |messages: &[Message]| {
                let prompt = encode(self.asking.text, messages)?;
                thinks.set(prompt.thinks);
                Ok::<_, Error>(prompt.ids)
            };
            (block_in_place(|| conversation.fit(&question, most, encode))?, thinks.get())
        };
        if fitted.forgotten > 0 && fitted.prompt.len() < context {
            let turns = match fitted.forgotten {
                1 => "oldest turn".to_owned(),
                turns => format!("{turns} oldest turns"),
            };
            out::note(format_args!(
                "(the context of {context} tokens is full: the model is not told of the {turns} any more)"
            ));
        }
        let told = self.asking.answer(fitted.prompt, thinks, interrupts).await;
        block_in_place(|| self.prepared.learn(self.paces.take().as_deref(), None));
        match told {
            Ok(Told { answer, said, stopped }) => {
                let way_out = match conversation.has_turns() {
                    true => "what comes next leaves out the oldest turns",
                    false => MORE_ROOM,
                };
                match stopped {
                    true => out::note("(stopped)"),
                    false => tell_ending(&answer, context, way_out),
                }
                let summary = report::timing_summary(&answer.timing, &self.pushed);
                out::note(format_args!("({summary})"));
                conversation.add(question, said);
                Ok(())
            }
            Err(Error::Refused(refusal @ Refusal::PromptTooLong { .. })) => {
                out::note(format_args!("({refusal}: make your message shorter; {MORE_ROOM})"));
                conversation.remember(fitted.forgotten);
                Ok(())
            }
            Err(error) => Err(error),
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
    said: Written,
    /// By Ctrl-C.
    stopped: bool,
}

impl Asking<'_> {
    /// Shows the answer to `prompt` as it comes, until it ends or Ctrl-C stops it.
    async fn answer(
        &self,
        prompt: Vec<u32>,
        thinks: Option<&'static str>,
        interrupts: &mut Interrupts,
    ) -> Result<Told, Error> {
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
        let mut writer = Writer::folding(self.text, self.stop, thinks);
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
                Some(Event::Scored(_)) => {} // Nobody asks for it here.
                Some(Event::Embedding(_)) | None => {
                    return Err(scheduler::Error::NoEnd.into());
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
fn encode(text: &Text, messages: &[Message]) -> Result<ChatPrompt, Error> {
    if text.has_chat_template() {
        return Ok(text.encode_chat(messages)?);
    }
    let plain: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok(ChatPrompt { ids: text.encode(&plain.join("\n"), true)?, thinks: None })
}
