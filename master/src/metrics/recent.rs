//! What a stage did in its last steps.
use serde::Serialize;

/// Weight of the latest step.
const LATEST: f64 = 0.2;

/// Means over a stage's last steps, the latest weighing most; none of what there was no step of yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Recent {
    /// Seconds that it computes for a step, whatever that is of.
    pub step_seconds: Option<f64>,
    /// Seconds for a step that generates with all of its sequences.
    pub decode_seconds: Option<f64>,
    /// Tokens that it computes in a second of such steps.
    pub decode_tokens_per_second: Option<f64>,
    /// Seconds for a step that has rows of prompts.
    pub prefill_seconds: Option<f64>,
    /// Rows, most of them of prompts, that it computes in a second of such steps.
    pub prefill_tokens_per_second: Option<f64>,
    /// Part of the time that it computes while there are steps, 0 to 1.
    pub load: Option<f64>,
}

impl Recent {
    /// It computed for so many seconds, after having had nothing to do for `idle`, on a step of so many sequences with so
    /// many rows of prompts.
    pub(super) fn step(
        &mut self,
        seconds: f64,
        idle: Option<f64>,
        sequences: usize,
        prompt_rows: usize,
    ) {
        mean(&mut self.step_seconds, seconds);
        let (of_step, per_second, rows) = match prompt_rows {
            0 => (&mut self.decode_seconds, &mut self.decode_tokens_per_second, sequences),
            rows => (&mut self.prefill_seconds, &mut self.prefill_tokens_per_second, rows),
        };
        mean(of_step, seconds);
        if seconds > 0.0 {
            mean(per_second, rows as f64 / seconds);
        }
        if let Some(idle) = idle.filter(|idle| seconds + idle > 0.0) {
            mean(&mut self.load, seconds / (seconds + idle));
        }
    }
}

fn mean(mean: &mut Option<f64>, latest: f64) {
    *mean = Some(mean.map_or(latest, |before| before + LATEST * (latest - before)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_and_generated_rows_are_told_apart() {
        let mut recent = Recent::default();
        recent.step(0.5, None, 1, 100);
        assert_eq!((recent.prefill_seconds, recent.decode_seconds), (Some(0.5), None));
        assert_eq!((recent.prefill_tokens_per_second, recent.load), (Some(200.0), None));
        recent.step(0.25, Some(0.75), 2, 0);
        assert_eq!(
            (recent.decode_seconds, recent.decode_tokens_per_second),
            (Some(0.25), Some(8.0))
        );
        assert_eq!((recent.prefill_seconds, recent.load), (Some(0.5), Some(0.25)));
        assert_eq!(recent.step_seconds, Some(0.45));
        recent.step(0.0, Some(0.0), 1, 0);
        assert_eq!(recent.decode_tokens_per_second, Some(8.0), "no time, no rate");
    }
}
