//! A bench in lines for people.
use std::fmt::Write as _;

use cake_checkpoint::units::format_rate;

use super::figures::{Bench, Part, Spread};
use crate::cli::report::duration;

pub(super) fn text(bench: &Bench) -> String {
    let mut text = String::new();
    let Bench { model, runs, prompt_tokens, answer_tokens, .. } = bench;
    let times = if *runs == 1 { "time" } else { "times" };
    line(
        &mut text,
        format_args!(
            "{model}: {prompt_tokens} tokens of a prompt and {answer_tokens} of an answer, {runs} {times}\n"
        ),
    );
    let rate = |rate: f64| format!("{rate:.1} tok/s");
    let mut spread = |name: &str, of: &Spread, unit: &dyn Fn(f64) -> String| {
        let Spread { median, least, most } = *of;
        line(
            &mut text,
            format_args!("{name:<12} {:>12}   ({} to {})", unit(median), unit(least), unit(most)),
        );
    };
    spread("prompt", &bench.prompt_tokens_per_second, &rate);
    spread("answer", &bench.answer_tokens_per_second, &rate);
    spread("first token", &bench.first_token_seconds, &duration);
    text.push('\n');
    let names =
        bench.devices.iter().map(|it| it.device.chars().count() + it.layers.to_string().len() + 1);
    let width = names.max().unwrap_or(0).max("network and waiting".len());
    let known = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), duration);
    let mut row = |name: &str, measured: &str, planned: &str| {
        line(&mut text, format_args!("{name:<width$} {measured:>12} {planned:>12}"));
    };
    row("a token's time", "measured", "planned");
    for device in &bench.devices {
        let name = format!("{} {}", device.device, device.layers);
        row(&name, &known(device.seconds), &duration(device.planned_seconds));
    }
    for (name, Part { measured, planned }) in [
        ("embedding and head", bench.master),
        ("network and waiting", bench.network),
        ("together", bench.token),
    ] {
        row(name, &known(measured), &duration(planned));
    }
    if !bench.links.is_empty() {
        text.push('\n');
    }
    for link in &bench.links {
        let (trip, rate) = (duration(link.rtt_seconds), format_rate(link.bytes_per_second));
        line(&mut text, format_args!("link to {}: {trip} there and back, {rate}", link.device));
    }
    if let Some(sentence) = verdict(bench) {
        text.push('\n');
        line(&mut text, format_args!("{sentence}"));
    }
    text
}

/// Where most of a token's time goes, and how well the plan knew.
fn verdict(bench: &Bench) -> Option<String> {
    if bench.devices.iter().any(|it| it.seconds.is_none()) {
        return None; // Nobody knows what took the most.
    }
    let token = bench.token.measured.filter(|seconds| *seconds > 0.0)?;
    let devices = bench.devices.iter().filter_map(|it| Some((it.device.as_str(), it.seconds?)));
    let parts = devices.chain([
        ("the master's embedding and head", bench.master.measured?),
        ("the network", bench.network.measured?),
    ]);
    let (name, seconds) = parts.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let share = (seconds / token * 100.0).min(100.0);
    let off = (token / bench.token.planned - 1.0) * 100.0;
    let plan = match off {
        _ if !off.is_finite() => String::new(),
        off if off.abs() < 5.0 => "; the plan was right to 5 %".to_owned(),
        off if off > 0.0 => format!("; a token takes {off:.0} % longer than planned"),
        off => format!("; a token takes {:.0} % less than planned", -off),
    };
    Some(format!("{share:.0} % of a token's time is {name}{plan}"))
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    writeln!(text, "{words}").expect("a string takes it");
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::example;

    #[test]
    fn a_bench_is_told_in_three_parts_and_a_sentence() {
        let expected = "\
smol: 256 tokens of a prompt and 3 of an answer, 3 times

prompt        500.0 tok/s   (400.0 tok/s to 600.0 tok/s)
answer         50.0 tok/s   (40.0 tok/s to 60.0 tok/s)
first token        0.50 s   (0.42 s to 0.62 s)

a token's time          measured      planned
kitchen 0..12             5.0 ms       4.0 ms
attic 12..30             10.0 ms      12.0 ms
embedding and head        3.0 ms       3.0 ms
network and waiting       2.0 ms       6.0 ms
together                 20.0 ms      25.0 ms

link to kitchen: 0.4 ms there and back, 95.4 MiB/s

50 % of a token's time is attic; a token takes 20 % less than planned
";
        assert_eq!(super::text(&example()), expected);
    }
}
