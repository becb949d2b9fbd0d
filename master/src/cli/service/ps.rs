//! `cake-master ps`: the requests that run now.
use serde::{Deserialize, Serialize};

use super::super::{Error, out, report};
use super::table::table;
use super::{ServiceArgs, plain};
use crate::running::{RequestNow, Stage};

/// Characters of an id, a model or a client that a line has room for.
const SHOWN: usize = 32;

/// Arguments of `ps`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// What `/api/requests` answers.
#[derive(Debug, Deserialize, Serialize)]
struct Requests {
    requests: Vec<RequestNow>,
}

impl Args {
    /// Prints a line for each.
    pub(in crate::cli) fn run(self) -> Result<(), Error> {
        let Requests { requests } = self.service.service()?.get("/api/requests")?;
        if self.json {
            return report::print_json(&requests);
        }
        match requests.is_empty() {
            true => {
                out::note("no request is computed, or waits for room or for a model");
                Ok(())
            }
            false => out::text(text(&requests)),
        }
    }
}

fn text(requests: &[RequestNow]) -> String {
    let rows: Vec<[String; 8]> = requests.iter().map(row).collect();
    table(["id", "model", "client", "", "prompt", "answer", "tok/s", "since"], &rows)
}

fn row(request: &RequestNow) -> [String; 8] {
    let short = |text: &str| plain(text).chars().take(SHOWN).collect::<String>();
    let prompt = match request.cached_tokens {
        0 => request.prompt_tokens.to_string(),
        cached => format!("{} ({cached} cached)", request.prompt_tokens),
    };
    let stage = match request.stage {
        Stage::Waiting => "waits",
        Stage::Reading => "reads",
        Stage::Writing => "writes",
    };
    [
        short(&request.id),
        short(&request.model),
        short(&request.client),
        stage.to_owned(),
        prompt,
        request.generated_tokens.to_string(),
        request.tokens_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
        report::duration(request.seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_line() {
        let request = RequestNow {
            id: "7".to_owned(),
            model: "smol".to_owned(),
            client: "curl".to_owned(),
            stage: Stage::Writing,
            answers: 1,
            prompt_tokens: 40,
            cached_tokens: 32,
            generated_tokens: 9,
            tokens_per_second: Some(12.345),
            since_ms: 1,
            seconds: 1.25,
        };
        let waits = RequestNow {
            id: "8".to_owned(),
            stage: Stage::Waiting,
            cached_tokens: 0,
            generated_tokens: 0,
            tokens_per_second: None,
            ..request.clone()
        };
        let expected = "id  model  client          prompt          answer  tok/s  since\n\
                        7   smol   curl    writes  40 (32 cached)  9       12.3   1.2 s\n\
                        8   smol   curl    waits   40              0       -      1.2 s\n";
        assert_eq!(text(&[request, waits]), expected);
    }
}
