//! `cake-master run MODEL PROMPT`: one answer, over workers or alone.
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cake_checkpoint::units::format_bytes;
use tokio::task::block_in_place;

use super::args::{ClusterArgs, MODEL, PlanArgs, SampleArgs};
use super::told::{Words, warn};
use super::{Error, announce, out, report};
use crate::deployment::{PlanRequest, prepare};
use crate::generate::{Answer, Finish, Options, Timing};
use crate::reply::{Opening, Reply, Shown};
use crate::scheduler::Generator;
use crate::state::State;
use crate::text::Marks;
use crate::text::{Detokenizer, Message, StopStrings, Text};

/// Most bytes of a prompt on standard input: more than any context holds, and little to hold.
const MOST_PIPED: u64 = 16 << 20;

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Prompt")]
pub(super) struct Args {
    #[arg(help = MODEL)]
    pub(super) model: String,
    /// What to ask, or to continue with --raw; with -, or without it, what standard input says.
    prompt: Option<String>,
    /// Token ids instead of text, separated by commas; no template is applied.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "system"])]
    prompt_ids: Option<Vec<u32>>,
    /// A system message before the prompt. Default: none.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the text as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Write the logits of every prompt position to a safetensors file (`logits`, f32). Default: none.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    logits_out: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl Args {
    /// Plans, pushes, generates, prints.
    pub(super) async fn run(self) -> Result<(), Error> {
        // Whoever writes it may take long: nobody is held for that.
        let piped = block_in_place(|| self.piped())?;
        let started = Instant::now();
        let (cluster, _door) = self.cluster.whereabouts().await?;
        // Alone there is no plan to tell of, and for programs it is told by `plan`.
        let predict = !self.json && !cluster.addresses().is_empty();
        let request = PlanRequest { predict, ..self.plan.clone().try_into()? };
        let told = Arc::new(Words::unless(self.json));
        let prepared = prepare(State::open()?, &self.model, &cluster, &request, told).await?;
        let checkpoint = &prepared.model.checkpoint;
        let text = block_in_place(|| Text::of(&checkpoint.texts))?;
        let prompt = block_in_place(|| self.prompt_ids(piped.as_deref(), &text))?;
        warn(&text.warnings);
        let sampling = self.sample.options(checkpoint)?;
        let seed = sampling.seed;
        let options = Options {
            sampling,
            max_tokens: self.sample.max_tokens(checkpoint),
            stop_ids: self.sample.stop_ids(checkpoint, text.eos_id()),
            chunk: prepared.chunk(),
            context: prepared.promise().context,
            keep_prompt_logits: self.logits_out.is_some(),
        };
        let tell = announce::tell_of(&prepared, self.json);
        let mut pushed = announce::announce_and_push(&prepared, tell).await?;
        let (pipeline, ends) = prepared.load(&mut pushed).await?;
        let ready_seconds = started.elapsed().as_secs_f64();
        let promise = prepared.promise();
        let generator = Generator { pipeline: &pipeline, ends: &ends, promise };
        let mut writer = Writer::new(&text, &self.sample.stop, !self.json);
        let answer = generator.generate(&prompt, &options, |id| writer.token(id)).await?;
        let output = writer.finish();
        let paces = pipeline.paces().take();
        block_in_place(|| prepared.learn(paces.as_deref(), ends_seconds(&answer.timing)));
        if let Some(path) = &self.logits_out {
            block_in_place(|| write_logits(path, &answer, checkpoint.config.vocab_size))?;
        }
        let output = output?.text;
        if self.json {
            let timing = report::RunTiming {
                ready_seconds,
                push_seconds: pushed.seconds,
                total_first_token_seconds: ready_seconds + answer.timing.first_token_seconds,
                answer: &answer.timing,
            };
            report::print_json(&report::RunReport {
                prompt_ids: &prompt,
                output_ids: &answer.output_ids,
                logprobs: &answer.logprobs,
                text: &output,
                finish: answer.finish,
                seed,
                timing,
                stages: pipeline.stages(),
                pushed_bytes: pushed.pushed_bytes,
                reused_bytes: pushed.reused_bytes,
            })?;
        } else {
            out::line("")?;
            tell_ending(&answer, prepared.promise().context, "--context makes more room");
            out::note(report::timing_summary(&answer.timing, &pushed));
        }
        Ok(())
    }

    /// The prompt on standard input, if it is there that it is.
    fn piped(&self) -> Result<Option<String>, Error> {
        match (&self.prompt, &self.prompt_ids) {
            (_, Some(_)) => Ok(None),
            (Some(prompt), None) if prompt != "-" => Ok(None),
            (None, None) if std::io::stdin().is_terminal() => {
                let expected = "a prompt, or standard input from a pipe or a file";
                Err(Error::argument("PROMPT", "missing", expected))
            }
            _ => read_prompt(std::io::stdin().lock()).map(Some),
        }
    }

    /// The prompt as ids: given, templated, or raw. `piped` is what standard input said.
    fn prompt_ids(&self, piped: Option<&str>, text: &Text) -> Result<Vec<u32>, Error> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(ids.clone());
        }
        let prompt = piped.or(self.prompt.as_deref()).unwrap_or_default();
        check_system(self.system.as_deref(), text)?;
        if self.raw || !text.has_chat_template() {
            return Ok(text.encode(prompt, true)?);
        }
        let system = self.system.as_deref().map(|content| Message::new("system", content));
        let messages: Vec<Message> =
            system.into_iter().chain([Message::new("user", prompt)]).collect();
        Ok(text.encode_chat(&messages)?.ids)
    }
}

/// Seconds of the master's own part of a token, in the median of those that were decoded, if they are enough.
fn ends_seconds(timing: &Timing) -> Option<f64> {
    /// The first ones find cold caches.
    const LEAST: usize = 16;
    let mut all: Vec<f64> = timing.decode_steps.iter().map(|step| step.ends_seconds).collect();
    all.sort_by(f64::total_cmp);
    (all.len() >= LEAST).then(|| all[all.len() / 2])
}

/// All of `input` but the end of its last line.
fn read_prompt(input: impl Read) -> Result<String, Error> {
    let refused =
        |found: String, expected: &str| Error::argument("standard input", found, expected);
    let mut bytes = Vec::new();
    let read = input.take(MOST_PIPED + 1).read_to_end(&mut bytes);
    read.map_err(|source| Error::Input { source })?;
    if bytes.len() as u64 > MOST_PIPED {
        let expected = format!("a prompt of at most {}", format_bytes(MOST_PIPED));
        return Err(refused("longer".to_owned(), &expected));
    }
    let mut prompt = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        refused(format!("no UTF-8 after {at} bytes"), "text")
    })?;
    if prompt.trim().is_empty() {
        return Err(refused("empty".to_owned(), "a prompt"));
    }
    if prompt.ends_with('\n') {
        prompt.pop();
        prompt.truncate(prompt.strip_suffix('\r').map_or(prompt.len(), str::len));
    }
    Ok(prompt)
}

/// Refuses a system message where no template would say it to the model.
pub(super) fn check_system(system: Option<&str>, text: &Text) -> Result<(), Error> {
    match system {
        Some(_) if !text.has_chat_template() => Err(Error::NoSystem),
        _ => Ok(()),
    }
}

/// Says why an answer ended, where that is not obvious, and `way_out` of a full context.
pub(super) fn tell_ending(answer: &Answer, context: usize, way_out: &str) {
    match answer.finish {
        Finish::Stop => {}
        Finish::Length => {
            out::note(format_args!("(stopped after {} tokens)", answer.output_ids.len()));
        }
        Finish::Context => {
            out::note(format_args!("(stopped: the context of {context} tokens is full; {way_out})"))
        }
    }
}

/// Turns ids into text as they come, stops at stop strings, and shows what is certain.
pub(super) struct Writer<'a> {
    detokenizer: Detokenizer<'a>,
    stops: StopStrings,
    /// What tells thoughts from text, and the tokens that mark these, where thoughts are not shown.
    folds: Option<(Reply, Marks)>,
    written: Written,
    show: bool,
    failed: Option<Error>, // Why it is not shown any more.
}

/// What a model wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) text: String,
    /// What it thought before, where that is told apart.
    pub(super) thought: String,
}

impl<'a> Writer<'a> {
    /// Shows the text on standard output as it comes if `show`.
    pub(super) fn new(text: &'a Text, stops: &[String], show: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(text),
            stops: StopStrings::new(stops.to_vec()),
            folds: None,
            written: Written::default(),
            show,
            failed: None,
        }
    }

    /// Keeps back what the model thinks, and says so. `thinks`: what ends the thoughts that its prompt has begun.
    pub(super) fn folding(text: &'a Text, stops: &[String], thinks: Option<&'static str>) -> Self {
        let (channels, blocks) = (text.has_channels(), text.has_blocks());
        let opening = Opening { thinks, channels, blocks, is_begun: false };
        let folds = Some((Reply::new(None, opening), text.marks(false).clone()));
        Self { folds, ..Self::new(text, stops, true) }
    }

    /// Takes the next id; false once a stop string is complete or nobody takes the text any more.
    pub(super) fn token(&mut self, id: u32) -> bool {
        // An id that no tokenizer entry has is no text, and no reason to stop either.
        let mark = self.folds.as_ref().and_then(|(_, marks)| marks.get(&id)).cloned();
        let piece = match mark {
            Some(mark) => self.detokenizer.finish().map(|rest| rest + &mark),
            None => self.detokenizer.push(id),
        };
        let Ok(piece) = piece else { return true };
        let scan = self.stops.push(&piece);
        self.emit(&scan.emit);
        !scan.stopped && self.failed.is_none()
    }

    /// The whole text.
    ///
    /// # Errors
    /// If a part of it could not be shown.
    pub(super) fn finish(mut self) -> Result<Written, Error> {
        let rest = self.detokenizer.finish().unwrap_or_default();
        let scan = self.stops.push(&rest);
        self.emit(&scan.emit);
        if !scan.stopped {
            let tail = self.stops.finish();
            self.emit(&tail);
        }
        if let Some((reply, _)) = self.folds.take() {
            let (rest, _no_calls) = reply.finish();
            self.show(&rest);
        }
        self.failed.map_or(Ok(self.written), Err)
    }

    fn emit(&mut self, piece: &str) {
        let shown = match &mut self.folds {
            Some((reply, _)) => reply.push(piece),
            None => Shown { text: piece.to_owned(), thought: String::new() },
        };
        self.show(&shown);
    }

    fn show(&mut self, Shown { thought, text }: &Shown) {
        let Written { text: said, thought: thoughts } = &mut self.written;
        if thoughts.is_empty() && !thought.is_empty() {
            out::note("(thinking; /thoughts shows it afterwards)");
        }
        thoughts.push_str(thought);
        said.push_str(text);
        if self.show && self.failed.is_none() {
            self.failed = out::text(text).err();
        }
    }
}

/// Writes `logits` f32 `[positions, vocab_size]`.
fn write_logits(path: &Path, answer: &Answer, vocab_size: usize) -> Result<(), Error> {
    let logits = answer.prompt_logits.as_deref().unwrap_or_default();
    let header = format!(
        r#"{{"logits":{{"dtype":"F32","shape":[{},{vocab_size}],"data_offsets":[0,{}]}}}}"#,
        logits.len() / vocab_size,
        logits.len() * 4,
    );
    let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (padded.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(padded.as_bytes());
    bytes.extend(logits.iter().flat_map(|value| value.to_le_bytes()));
    let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
    std::fs::write(path, bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piped_prompt_is_read_whole_but_for_the_end_of_its_last_line() {
        let read = |bytes: &[u8]| read_prompt(bytes).map_err(|error| error.to_string());
        assert_eq!(read(b"one\ntwo\n").as_deref(), Ok("one\ntwo"));
        assert_eq!(read(b"one\r\n").as_deref(), Ok("one"));
        assert_eq!(read(b" one \n\n").as_deref(), Ok(" one \n"));
        let refused = |bytes: &[u8]| read(bytes).expect_err("refused");
        assert!(refused(b"").contains("empty") && refused(b" \n\t").contains("empty"));
        assert!(refused(b"ab\xff").contains("no UTF-8 after 2 bytes"));
    }

    #[test]
    fn a_pipe_without_end_is_not_read_without_end() {
        let said = read_prompt(std::io::repeat(b'a')).expect_err("refused").to_string();
        assert!(said.contains("at most 16 MiB"), "{said}");
    }
}
