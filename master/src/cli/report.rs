//! Words and JSON about plans, pushes and answers.
use cake_checkpoint::KvDtype;
use cake_checkpoint::units::{format_bytes, format_rate};
use serde::Serialize;

use super::{Error, out};
use crate::deployment::facts::{KvFacts, Outlook, PushAhead, PushReport};
use crate::deployment::widths::LayerLoss;
use crate::deployment::{self, Prepared};
use crate::distributor::Pushed;
use crate::generate::Timing;
use crate::pipeline::StageInfo;
use crate::planner::{Idle, Plan, Refusal, table};

/// `run --json` prints exactly one of these.
#[derive(Debug, Serialize)]
pub(super) struct RunReport<'a> {
    /// Ids of the prompt, as given to the model.
    pub prompt_ids: &'a [u32],
    /// Ids of the answer.
    pub output_ids: &'a [u32],
    /// Log-probability of each output id.
    pub logprobs: &'a [f32],
    /// The answer.
    pub text: &'a str,
    /// Why it ended.
    pub finish: crate::generate::Finish,
    /// Seed that sampling used.
    pub seed: u64,
    /// What it took.
    pub timing: RunTiming<'a>,
    /// Who computed what.
    pub stages: &'a [StageInfo],
    /// Blob bytes sent to workers.
    pub pushed_bytes: u64,
    /// Blob bytes that workers had already.
    pub reused_bytes: u64,
}

/// Times of a run, in seconds.
#[derive(Debug, Serialize)]
pub(super) struct RunTiming<'a> {
    /// From the start of the program to a pipeline that takes steps.
    pub ready_seconds: f64,
    /// Of that, pushing blobs.
    pub push_seconds: f64,
    /// From the start of the program to the first token.
    pub total_first_token_seconds: f64,
    /// The answer itself.
    #[serde(flatten)]
    pub answer: &'a Timing,
}

/// What will be pushed where, and how long that may take. Empty if nothing is missing.
pub(super) fn push_forecast(outlook: &Outlook<'_>) -> Vec<String> {
    let line = |push: &PushAhead<'_>| {
        let time = push.seconds.map_or("in a time not known".to_owned(), |seconds| {
            format!("in about {}", duration(seconds))
        });
        format!(
            "push {} to {} {time} ({} of disk free there)",
            format_bytes(push.missing_bytes),
            push.device,
            format_bytes(push.free_disk_bytes),
        )
    };
    outlook.pushes.iter().map(line).collect()
}

/// One line about a finished push.
pub(super) fn push_summary(report: &PushReport) -> String {
    if report.workers.is_empty() {
        return "nothing to push: no worker takes part".to_owned();
    }
    if report.pushed_bytes == 0 {
        return format!("nothing to push: {} already there", format_bytes(report.reused_bytes));
    }
    let reused = match report.reused_bytes {
        0 => String::new(),
        bytes => format!(", {} were there already", format_bytes(bytes)),
    };
    format!(
        "pushed {} in {} ({}){reused}",
        format_bytes(report.pushed_bytes),
        duration(report.seconds),
        format_rate(report.pushed_bytes as f64 / report.seconds.max(1e-9)),
    )
}

/// One line about an answer.
pub(super) fn timing_summary(timing: &Timing, push: &PushReport) -> String {
    let reused = match timing.reused_tokens {
        0 => String::new(),
        tokens => format!(", {tokens} reused"),
    };
    format!(
        "{} prompt tokens{reused} ({:.1} tok/s), first token after {}, then {:.1} tok/s; \
         {} pushed, {} reused",
        timing.prompt_tokens,
        timing.prefill_tokens_per_second,
        duration(timing.first_token_seconds),
        timing.decode_tokens_per_second,
        format_bytes(push.pushed_bytes),
        format_bytes(push.reused_bytes),
    )
}

/// `plan --json` and `push --json`.
#[derive(Debug, Serialize)]
pub(super) struct PlanReport<'a> {
    /// Model as people call it.
    pub model: &'a str,
    /// What its weights are turned into.
    pub encoding: String,
    /// What each layer loses by each encoding, and which it gets, where that was asked or decided about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<&'a [LayerLoss]>,
    /// Tokens of context planned for.
    pub context: usize,
    /// Sequences planned for.
    pub parallel: usize,
    /// How keys and values are kept, and how far they are off by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvFacts>,
    /// The plan.
    pub plan: &'a Plan,
    /// Blob bytes that workers lack.
    pub missing_bytes: u64,
    /// Who is there and has no layers, and why.
    pub idle: &'a [Idle],
    /// Members that joined and could not be used, each with why.
    pub missing: &'a [String],
    /// Layers of the model, if what the plan calls layers are parts of these: devices share them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts_of: Option<usize>,
    /// Whether weights are missing, so that the model can be planned and cannot run.
    pub headers_only: bool,
    /// What was pushed, by `push`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<&'a [Pushed]>,
    /// Wall time of the push, by `push`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_seconds: Option<f64>,
}

impl<'a> PlanReport<'a> {
    /// A report on a plan, and on its push if there was one.
    pub(super) fn new(prepared: &'a Prepared, push: Option<&'a PushReport>) -> Self {
        Self {
            model: &prepared.model.checkpoint.location.name,
            encoding: prepared.model.encoding(),
            losses: prepared.losses.as_deref(),
            context: prepared.promise().context,
            parallel: prepared.promise().parallel,
            kv: prepared.kv(),
            plan: prepared.plan(),
            missing_bytes: prepared.missing_bytes().iter().sum(),
            idle: &prepared.chosen.idle,
            missing: &prepared.missing,
            parts_of: prepared.parts_of(),
            headers_only: prepared.headers_only,
            pushed: push.map(|push| push.workers.as_slice()),
            push_seconds: push.map(|push| push.seconds),
        }
    }
}

/// The plan as people read it: who holds what, what to expect of it, what stays on the master.
pub(super) fn plan_text(outlook: &Outlook<'_>) -> String {
    let encoding = match &outlook.encoding {
        None => String::new(),
        Some(encoding) => format!("weights are encoded as {encoding}; "),
    };
    let parts = match outlook.parts_of {
        Some(whole) => format!(
            "what is called layers here are parts of {whole} layers: attention, and slices of experts\n"
        ),
        None => String::new(),
    };
    let idle = outlook.idle.iter();
    let idle: String =
        idle.map(|Idle { device, why }| format!("{device} has no layers: {why}\n")).collect();
    let kv =
        outlook.kv.as_ref().and_then(kv_text).map_or(String::new(), |text| format!("\n{text}"));
    format!(
        "{}{parts}{idle}predicted: {}\n{encoding}embedding and head stay on the master ({}); context {} tokens × {}{kv}",
        table::render(outlook.plan),
        table::summary(outlook.plan),
        format_bytes(outlook.ends_bytes),
        outlook.context,
        outlook.parallel,
    )
}

/// What people should know of keys and values that are kept in 8 bits: what that saves, and what it loses.
fn kv_text(kv: &KvFacts) -> Option<String> {
    if kv.dtype != KvDtype::Q8 {
        return None;
    }
    let KvFacts { bytes, bytes_in_f16, head_dim, .. } = kv;
    let (most, typical) = kv.most_error.zip(kv.typical_error)?;
    let (bytes, in_f16) = (format_bytes(*bytes), format_bytes(*bytes_in_f16));
    Some(format!(
        "keys and values are kept in 8 bits: {bytes}, where f16 takes {in_f16}; each is off by {:.2} % at most of the largest \
         of the {} that share a scale, a head of {head_dim} by {:.2} % of its length (measured on normally distributed numbers)",
        most * 100.0,
        KvDtype::GROUP.min(*head_dim),
        typical * 100.0,
    ))
}

/// What each layer loses by each encoding: the squared error for each squared weight, in thousandths.
pub(super) fn losses_text(losses: &[LayerLoss]) -> String {
    let mut text = String::from(
        "squared error for each squared weight, in thousandths, by a sample of each matrix's rows",
    );
    if let Some(first) = losses.first() {
        let names = first.loss.iter().map(|(name, _)| format!("{name:>10}")).collect::<String>();
        text.push_str(&format!("\nlayer{names}  gets"));
    }
    for LayerLoss { layer, encoding, loss } in losses {
        let numbers = loss.iter().map(|(_, loss)| format!("{:>10.3}", loss * 1e3));
        text.push_str(&format!("\n{layer:>5}{}  {encoding}", numbers.collect::<String>()));
    }
    text
}

/// What a command that was asked for JSON prints when it fails.
#[derive(Debug, Serialize)]
struct Failed<'a> {
    /// The sentence that people get on standard error.
    error: String,
    /// Why there is no plan, in numbers, if that is what failed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a Refusal>,
}

/// A failure as JSON on standard output, beside the sentence on standard error.
pub(super) fn print_error(error: &Error) -> Result<(), Error> {
    print_json(&Failed { error: error.to_string(), refusal: refusal(error) })
}

/// The refusal of the planner, if that is what failed.
fn refusal(error: &Error) -> Option<&Refusal> {
    use deployment::Error::{Plan, PlanWithout};
    match error {
        Error::Deployment(Plan(refusal) | PlanWithout { refusal, .. }) => Some(refusal),
        _ => None,
    }
}

/// Pretty JSON on standard output.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => out::line(text),
        Err(source) => Err(Error::Output { source: source.into() }),
    }
}

/// Seconds for people: `3.4 ms`, `0.12 s`, `3.4 s`, `2 min 5 s`.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{s:.2} s"),
        s if s < 60.0 => format!("{s:.1} s"),
        s => format!("{} min {:.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_plan_is_told_in_numbers_too() {
        let error = deployment::Error::Plan(Refusal::SameName { name: "phone".into() }).into();
        let failed = Failed { error: Error::to_string(&error), refusal: refusal(&error) };
        let expected = serde_json::json!({
            "error": "two devices are named phone", "refusal": "same_name", "name": "phone",
        });
        assert_eq!(serde_json::to_value(failed).expect("JSON"), expected);
        let failed = Failed { error: "interrupted".into(), refusal: None };
        let expected = serde_json::json!({ "error": "interrupted" });
        assert_eq!(serde_json::to_value(failed).expect("JSON"), expected);
    }

    #[test]
    fn keys_and_values_in_8_bits_are_told_with_their_error() {
        let kv = KvFacts {
            dtype: KvDtype::Q8,
            bytes_per_token: 17 << 10,
            bytes: 17 << 20,
            bytes_in_f16: 32 << 20,
            head_dim: 64,
            most_error: Some(0.5 / 127.0),
            typical_error: Some(0.0047),
        };
        let text = kv_text(&kv).expect("told");
        for part in ["17 MiB, where f16 takes 32 MiB", "0.39 % at most", "of the 32 ", "0.47 %"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(kv_text(&KvFacts { dtype: KvDtype::F16, ..kv }), None);
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(0.01234), "12.3 ms");
        assert_eq!(duration(0.1234), "0.12 s");
        assert_eq!(duration(3.44), "3.4 s");
        assert_eq!(duration(125.2), "2 min 5 s");
    }
}
