//! What was measured, summed up. Numbers in, numbers out.
use cake_checkpoint::LayerRange;
use serde::Serialize;

use crate::generate::Timing;
use crate::planner::Plan;

/// All of a bench.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Bench {
    /// The model as people call it.
    pub(super) model: String,
    /// How often it ran.
    pub(super) runs: usize,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: usize,
    /// Tokens of the answer.
    pub(super) answer_tokens: usize,
    /// Prompt tokens per second.
    pub(super) prompt_tokens_per_second: Spread,
    /// Tokens per second after the first one.
    pub(super) answer_tokens_per_second: Spread,
    /// From the start of a prompt to the first token.
    pub(super) first_token_seconds: Spread,
    /// Where the time of a generated token goes, device by device.
    pub(super) devices: Vec<DeviceFigures>,
    /// Of that, embedding, head and the choice, at the master.
    pub(super) master: Part,
    /// Of that, what neither computes: the network, queues, messages made and read.
    pub(super) network: Part,
    /// All of it.
    pub(super) token: Part,
    /// The ways to the workers.
    pub(super) links: Vec<Link>,
}

/// Figures of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Seconds of a token's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Part {
    /// The median of what was measured.
    pub(super) measured: Option<f64>,
    /// What the plan predicts.
    pub(super) planned: f64,
}

/// A device's part of it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct DeviceFigures {
    pub(super) device: String,
    pub(super) layers: LayerRange,
    /// Seconds of arithmetic for a token, if enough tokens came to know.
    pub(super) seconds: Option<f64>,
    /// What the plan predicts.
    pub(super) planned_seconds: f64,
}

/// The way from the master to a worker and back.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Link {
    pub(super) device: String,
    /// Seconds for a message there and back.
    pub(super) rtt_seconds: f64,
    /// Bytes per second to it.
    pub(super) bytes_per_second: f64,
}

/// What a plan predicts.
#[derive(Debug)]
pub(super) struct Planned {
    stages: Vec<(String, LayerRange, f64)>,
    ends_seconds: f64,
    step_seconds: f64,
}

impl Planned {
    pub(super) fn of(plan: &Plan) -> Self {
        let stages = plan.stages.iter();
        Self {
            stages: stages.map(|it| (it.device.clone(), it.layers, it.stage_seconds)).collect(),
            ends_seconds: plan.ends_seconds,
            step_seconds: plan.step_seconds,
        }
    }
}

impl Bench {
    /// Of at least one run. `paces` are medians of each stage, one of each run that had enough steps.
    pub(super) fn of(
        model: &str,
        timings: &[Timing],
        paces: &[Vec<f64>],
        planned: Planned,
        links: Vec<Link>,
    ) -> Self {
        let over = |of: fn(&Timing) -> f64| Spread::of(timings.iter().map(of).collect());
        let steps = || timings.iter().flat_map(|timing| &timing.decode_steps);
        let master = median(steps().map(|step| step.ends_seconds).collect());
        let token = median(steps().map(|step| step.seconds).collect());
        let rest = steps().map(|step| step.seconds - step.stage_seconds - step.ends_seconds);
        let network = median(rest.map(|seconds| seconds.max(0.0)).collect());
        let computed: f64 = planned.stages.iter().map(|(_, _, seconds)| seconds).sum();
        let seconds = |stage: usize| {
            median(paces.iter().filter_map(|stages| stages.get(stage).copied()).collect())
        };
        let devices = planned.stages.into_iter().enumerate();
        let devices = devices.map(|(stage, (device, layers, planned_seconds))| DeviceFigures {
            device,
            layers,
            seconds: seconds(stage),
            planned_seconds,
        });
        Self {
            model: model.to_owned(),
            runs: timings.len(),
            prompt_tokens: timings.first().map_or(0, |timing| timing.prompt_tokens),
            answer_tokens: timings.first().map_or(0, |timing| timing.decode_tokens + 1),
            prompt_tokens_per_second: over(|timing| timing.prefill_tokens_per_second),
            answer_tokens_per_second: over(|timing| timing.decode_tokens_per_second),
            first_token_seconds: over(|timing| timing.first_token_seconds),
            devices: devices.collect(),
            master: Part { measured: master, planned: planned.ends_seconds },
            network: Part {
                measured: network,
                planned: (planned.step_seconds - planned.ends_seconds - computed).max(0.0),
            },
            token: Part { measured: token, planned: planned.step_seconds },
            links,
        }
    }
}

impl Spread {
    fn of(values: Vec<f64>) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        Self { least: least.min(most), most, median: median(values).unwrap_or(0.0) }
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::generate::StepTiming;

    /// Three runs over two stages, with a plan that is a little off.
    pub(in crate::cli::bench) fn example() -> Bench {
        let timing = |rate: f64| {
            let step = StepTiming { seconds: 0.02, stage_seconds: 0.015, ends_seconds: 0.003 };
            Timing {
                prompt_tokens: 256,
                decode_tokens: 2,
                prefill_tokens_per_second: rate * 10.0,
                decode_tokens_per_second: rate,
                first_token_seconds: 25.0 / rate,
                decode_steps: vec![step; 2],
                ..Timing::default()
            }
        };
        let range = |text: &str| text.parse::<LayerRange>().expect("a range");
        let planned = Planned {
            stages: vec![
                ("kitchen".to_owned(), range("0..12"), 0.004),
                ("attic".to_owned(), range("12..30"), 0.012),
            ],
            ends_seconds: 0.003,
            step_seconds: 0.025,
        };
        let link = Link { device: "kitchen".to_owned(), rtt_seconds: 4e-4, bytes_per_second: 1e8 };
        let timings = [50.0, 40.0, 60.0].map(timing);
        Bench::of("smol", &timings, &[vec![0.005, 0.01]], planned, vec![link])
    }

    #[test]
    fn runs_become_medians_with_their_spread() {
        let bench = example();
        let expected = Spread { median: 50.0, least: 40.0, most: 60.0 };
        assert_eq!(bench.answer_tokens_per_second, expected);
        assert_eq!((bench.runs, bench.prompt_tokens, bench.answer_tokens), (3, 256, 3));
    }

    #[test]
    fn what_nobody_computes_is_the_networks() {
        let bench = example();
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|it| (it - expected).abs() < 1e-9), "{found:?} {expected}");
        };
        near(bench.network.measured, 0.002);
        near(Some(bench.network.planned), 0.006);
        near(bench.devices[1].seconds, 0.01);
    }

    #[test]
    fn too_few_tokens_leave_a_device_unknown() {
        let planned = Planned { stages: Vec::new(), ends_seconds: 0.0, step_seconds: 0.0 };
        let bench = Bench::of("m", &[Timing::default()], &[], planned, Vec::new());
        assert_eq!((bench.token.measured, bench.runs), (None, 1));
    }
}
