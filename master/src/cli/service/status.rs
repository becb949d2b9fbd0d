//! `cake-master status`: what a service is doing, and who computes what.
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_checkpoint::units::format_bytes;
use serde_json::Value;

use super::super::{Error, out, report};
use super::table::table;
use super::{ServiceArgs, plain};

/// How often it is asked again.
const EVERY: Duration = Duration::from_secs(2);
/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Arguments of `status`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    /// Show it again every two seconds, until Ctrl-C.
    #[arg(short, long, help_heading = "Output")]
    watch: bool,
    /// Print JSON.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

impl Args {
    /// Prints how it is, once or again and again.
    pub(in crate::cli) async fn run(self) -> Result<(), Error> {
        let service = self.service.service()?;
        let clears = !self.json && std::io::stdout().is_terminal();
        loop {
            let cluster: Value = service.get("/api/cluster")?;
            let start = if self.watch && clears { CLEAR } else { "" };
            match self.json {
                true => report::print_json(&cluster)?,
                false => out::text(format_args!(
                    "{start}{}",
                    text(&cluster, &service.url, SystemTime::now())
                ))?,
            }
            if !self.watch {
                return Ok(());
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// What `/api/cluster` says, for people. What another version leaves out is shown as nothing.
fn text(cluster: &Value, url: &str, now: SystemTime) -> String {
    let lines = [head(cluster, url, now), devices(cluster), beside(cluster), load(cluster)];
    lines.concat()
}

/// Which service it is, and how far.
fn head(cluster: &Value, url: &str, now: SystemTime) -> String {
    let since = cluster["since_seconds"].as_u64().map(Duration::from_secs);
    let began = since.and_then(|since| UNIX_EPOCH.checked_add(since));
    let up = began.map(|began| now.duration_since(began).unwrap_or_default());
    let up = up.map_or_else(String::new, |up| {
        format!(", up for {}", report::duration(up.as_secs_f64().round()))
    });
    let reason = match word(&cluster["reason"]) {
        reason if reason.is_empty() => reason,
        reason => format!(": {reason}"),
    };
    let model = match word(&cluster["model"]) {
        none if none.is_empty() => "no model".to_owned(),
        model => model,
    };
    format!("{model} at {url}: {}{reason}{up}\n", word(&cluster["phase"]))
}

/// What is planned, device by device; nothing before there is a plan.
fn devices(cluster: &Value) -> String {
    let rows: Vec<[String; 5]> =
        list(&cluster["devices"]).map(|one| device(one, cluster)).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "{} layers, weights {}, room for {} sequences of {} tokens\n\n{}\n",
        count(&cluster["layers"]),
        word(&cluster["encoding"]),
        count(&cluster["parallel"]),
        count(&cluster["context"]),
        table(["device", "layers", "memory", "step", ""], &rows)
    )
}

/// What other models are loaded, and who has no layers, and why.
fn beside(cluster: &Value) -> String {
    let spares: Vec<String> = list(&cluster["spares"]).map(word).collect();
    let spares = match spares.is_empty() {
        true => String::new(),
        false => format!("without layers: {}\n", spares.join(", ")),
    };
    let awaited = list(&cluster["awaited"]).map(|one| {
        let name = word(&one["name"]);
        match (one["online"] == true, one["held_by"].is_string()) {
            (false, _) => format!("{name} cannot be used: {}\n", word(&one["why"])),
            (true, true) => format!("{name} is there; {} holds it\n", word(&one["held_by"])),
            (true, false) => {
                let offer = format_bytes(count(&one["memory_bytes"]));
                format!("{name} is there, and offers {offer}\n")
            }
        }
    });
    let aside = list(&cluster["set_aside"]).map(|aside| {
        let (name, why) = (word(&aside["worker"]), word(&aside["reason"]));
        format!("{name} gets no layers for {} s: {why}\n", count(&aside["seconds"]))
    });
    let also = list(&cluster["models"]).filter(|model| model["model"] != cluster["model"]);
    let also = also.map(|model| {
        let reason = word(&model["reason"]);
        let why = if reason.is_empty() { reason } else { format!(": {reason}") };
        format!("also {}: {}{why}\n", word(&model["model"]), word(&model["phase"]))
    });
    also.chain([spares]).chain(awaited).chain(aside).collect()
}

/// How busy it is.
fn load(cluster: &Value) -> String {
    let (load, rates, totals) = (&cluster["load"], &cluster["rates"], &cluster["totals"]);
    let rate = |name: &str| rates[name].as_f64().unwrap_or_default();
    let blocks = &load["kv_blocks"];
    let cache = match count(&blocks["total"]) {
        0 => String::new(),
        total => format!("KV cache: {} of {total} blocks held\n", count(&blocks["held"])),
    };
    format!(
        "requests: {} running, {} waiting, {} ended since the start\n\
         tokens: {:.1}/s of prompts, {:.1}/s made; {} and {} since the start\n{cache}",
        count(&load["running"]),
        count(&load["waiting"]),
        count(&totals["answers"]),
        rate("prompt_tokens_per_second"),
        rate("generated_tokens_per_second"),
        count(&totals["prompt_tokens"]),
        count(&totals["generated_tokens"]),
    )
}

/// A device's line.
fn device(device: &Value, cluster: &Value) -> [String; 5] {
    let memory = &device["memory"];
    let parts = ["weights", "kv", "state", "scratch", "overhead"].map(|name| count(&memory[name]));
    let used = parts.into_iter().fold(0, u64::saturating_add);
    let push = &device["push"];
    let there = count(&push["sent_bytes"]).saturating_add(count(&push["reused_bytes"]));
    let progress = match (push["finished"].as_bool(), count(&push["total_bytes"])) {
        (Some(false), total) if total > 0 => {
            format!(" {:.0} %", there as f64 / total as f64 * 100.0)
        }
        _ => String::new(),
    };
    let step = device["step_seconds"].as_f64();
    [
        word(&device["name"]),
        word(&device["layers"]),
        format!("{} of {}", format_bytes(used), format_bytes(count(&memory["budget"]))),
        step.map_or_else(|| "-".to_owned(), report::duration),
        word(&device["state"]) + &progress + &warmth(device, cluster),
    ]
}

/// How warm a device is, where its worker tells.
fn warmth(device: &Value, cluster: &Value) -> String {
    let is_it = |member: &&Value| member["name"] == device["name"] && device["local"] != true;
    let celsius = list(&cluster["members"]).find(is_it).and_then(|it| it["celsius"].as_u64());
    celsius.map_or_else(String::new, |celsius| format!(", {celsius} °C"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// What others said, without what a terminal would obey.
fn word(value: &Value) -> String {
    plain(value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_told_device_by_device() {
        let cluster = json!({
            "model": "smol", "phase": "ready", "reason": null, "encoding": "as-stored", "context": 4096,
            "parallel": 8, "layers": 30, "since_seconds": 100, "spares": ["attic"],
            "set_aside": [{"worker": "tablet", "quarantine": false, "seconds": 9, "reason": "it lied"}],
            "members": [{"name": "kit\u{7}chen", "celsius": 61}, {"name": "attic", "celsius": 40}],
            "devices": [{
                "name": "kit\u{7}chen", "state": "ready", "layers": "0..30", "step_seconds": 0.0042,
                "memory": {"weights": 1 << 20, "kv": 1 << 20, "state": 0, "scratch": 0, "overhead": 0, "budget": 4 << 20},
            }],
            "load": {"running": 2, "waiting": 1, "kv_blocks": {"total": 64, "held": 3}},
            "rates": {"prompt_tokens_per_second": 31.25, "generated_tokens_per_second": 9.5},
            "totals": {"answers": 7, "prompt_tokens": 300, "generated_tokens": 80},
        });
        let told = text(&cluster, "http://a:1", UNIX_EPOCH + Duration::from_secs(225));
        let expected = "smol at http://a:1: ready, up for 2 min 5 s\n\
            30 layers, weights as-stored, room for 8 sequences of 4096 tokens\n\n\
            device   layers  memory          step\n\
            kitchen  0..30   2 MiB of 4 MiB  4.2 ms  ready, 61 °C\n\n\
            without layers: attic\n\
            tablet gets no layers for 9 s: it lied\n\
            requests: 2 running, 1 waiting, 7 ended since the start\n\
            tokens: 31.2/s of prompts, 9.5/s made; 300 and 80 since the start\n\
            KV cache: 3 of 64 blocks held\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_service_without_a_plan_yet_is_told_as_well() {
        let told = text(&json!({"model": "smol", "phase": "planning"}), "http://a:1", UNIX_EPOCH);
        assert!(told.starts_with("smol at http://a:1: planning\nrequests: 0 running"), "{told}");
        let awaited = json!([
            {"name": "attic", "online": true, "held_by": null, "memory_bytes": 3_u64 << 30, "why": null},
            {"name": "porch", "online": true, "held_by": "another", "memory_bytes": 1 << 30, "why": null},
            {"name": "b:7117", "online": false, "why": "no worker answers at b:7117"},
        ]);
        let idle = json!({"model": "", "phase": "idle", "awaited": awaited});
        let told = text(&idle, "http://a:1", UNIX_EPOCH);
        let expected = "no model at http://a:1: idle\n\
            attic is there, and offers 3 GiB\n\
            porch is there; another holds it\n\
            b:7117 cannot be used: no worker answers at b:7117\n";
        assert!(told.starts_with(expected), "{told}");
    }
}
