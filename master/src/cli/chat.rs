//! `cake-master chat MODEL`: turn after turn; what earlier turns computed is not computed again.
use std::io::{BufRead, IsTerminal, Write};

use tokio::sync::mpsc;

use super::args::{ClusterArgs, PlanArgs, SampleArgs};
use super::prepare::{prepare, warn};
use super::run::{Writer, check_system, tell_ending};
use super::{Error, out, report};
use crate::generate::{Generator, Options, Sequence};
use crate::pipeline::Blocks;
use crate::state::State;
use crate::text::{Message, Text};

/// How to go on once the conversation fills the context.
const WAY_OUT: &str = "start a new chat, with a larger --context if the model has one";

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
    pub(super) async fn run(self) -> Result<(), Error> {
        let prepared = prepare(State::open()?, &self.model, &self.cluster, &self.plan, &[]).await?;
        let checkpoint = &prepared.model.checkpoint;
        let text = Text::open(&checkpoint.location.directory)?;
        check_system(self.system.as_deref(), &text)?;
        warn(&text.warnings);
        let options = Options {
            sampling: self.sample.options(checkpoint)?,
            max_tokens: self.sample.max_tokens(checkpoint),
            stop_ids: self.sample.stop_ids(checkpoint, text.eos_id()),
            chunk: prepared.chunk,
            context: prepared.promise.context,
            keep_prompt_logits: false,
        };
        let tell = prepared.tell(false);
        let mut pushed = prepared.announce_and_push(tell).await?;
        let pipeline = prepared.open(tell, &mut pushed).await?;
        let ends = prepared.ends()?;
        let generator = Generator { pipeline: &pipeline, ends: &ends };
        let mut blocks = Blocks::new(prepared.promise.kv_blocks());
        let mut sequence = Sequence::new(1);
        let mut messages: Vec<Message> =
            self.system.iter().map(|content| Message::new("system", content)).collect();
        let mut turns = read_turns();
        out::note("Type a message; an empty line or Ctrl-D ends the chat.");
        while let Some(turn) = turns.recv().await {
            messages.push(Message::new("user", &turn));
            let prompt = encode(&text, &messages)?;
            let mut writer = Writer::new(&text, &self.sample.stop, true);
            let answer = generator
                .generate(&mut sequence, &mut blocks, &prompt, &options, |id| writer.token(id))
                .await;
            let said = writer.finish()?;
            out::line("")?;
            match answer {
                Ok(answer) => {
                    tell_ending(&answer, options.context, WAY_OUT);
                    out::note(format_args!(
                        "({})",
                        report::timing_summary(&answer.timing, &pushed)
                    ));
                    messages.push(Message::new("assistant", &said));
                }
                Err(error @ crate::generate::Error::PromptTooLong { .. }) => {
                    out::note(format_args!(
                        "{error}; your last message is forgotten: make it shorter, or {WAY_OUT}"
                    ));
                    messages.pop();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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

/// Lines of standard input, read on a thread of their own so that Ctrl-C is always heard.
fn read_turns() -> mpsc::Receiver<String> {
    let (lines, turns) = mpsc::channel(1);
    std::thread::spawn(move || {
        let input = std::io::stdin();
        let prompt = input.is_terminal();
        loop {
            if prompt {
                write!(std::io::stderr(), "> ").ok();
            }
            let mut line = String::new();
            match input.lock().read_line(&mut line) {
                Ok(1..) if !line.trim().is_empty() => {}
                _ => return,
            }
            if lines.blocking_send(line.trim().to_owned()).is_err() {
                return;
            }
        }
    });
    turns
}
