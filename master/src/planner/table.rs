//! A plan as text for people: an aligned table, and a line of what it promises.

use super::{Plan, PlannedStage};
use cake_checkpoint::units::format_bytes;

const HEADINGS: [&str; COLUMNS] =
    ["device", "layers", "weights", "KV", "state", "scratch + process", "total of budget", "time"];
const COLUMNS: usize = 8;
/// The column that is left out where no layer keeps a state.
const STATE: usize = 4;

/// The plan as a table, one line per stage in chain order, each ending in a newline.
///
/// The last column is the stage's share of a step; what the shares leave of 100 % is the network's and the head's.
pub fn render(plan: &Plan) -> String {
    let mut rows = vec![Vec::from(HEADINGS.map(String::from))];
    rows.extend(plan.stages.iter().map(|stage| Vec::from(cells(plan, stage))));
    if plan.stages.iter().all(|stage| stage.memory.state == 0) {
        rows.iter_mut().for_each(|row| _ = row.remove(STATE));
    }
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    rows.iter().map(|row| line(row, &widths)).collect()
}

/// What the plan promises, as one line without a newline: speed, steps in flight, bytes to push.
pub fn summary(plan: &Plan) -> String {
    let speed = match plan.step_seconds {
        seconds if seconds > 0.0 => {
            format!("{} per token ({:.1} tok/s)", milliseconds(seconds), seconds.recip())
        }
        _ => String::from("speed not measured"),
    };
    let flight = match plan.steps_in_flight {
        1 => String::new(),
        steps => format!(", {steps} steps in flight"),
    };
    let push = match plan.push_bytes {
        0 => String::from("nothing to push"),
        bytes => format!("{} to push", format_bytes(bytes)),
    };
    let kept = if plan.kept { ", kept as it was: a change would gain less than 15 %" } else { "" };
    format!("{speed}{flight}; {push}{kept}")
}

fn cells(plan: &Plan, stage: &PlannedStage) -> [String; COLUMNS] {
    let memory = &stage.memory;
    let share = match plan.step_seconds {
        step if step > 0.0 => format!("{:.0} %", 100.0 * stage.stage_seconds / step),
        _ => String::from("-"),
    };
    [
        stage.device.clone(),
        stage.layers.to_string(),
        format_bytes(memory.weights),
        format_bytes(memory.kv),
        format_bytes(memory.state),
        format_bytes(memory.scratch.saturating_add(memory.overhead)),
        format!("{} of {}", format_bytes(memory.total()), format_bytes(memory.budget)),
        share,
    ]
}

/// The first column is text and starts at the left, the others are figures and end at the right.
fn line(row: &[String], widths: &[usize; COLUMNS]) -> String {
    let mut line = format!("{:<width$}", row[0], width = widths[0]);
    for (cell, width) in row.iter().zip(widths).skip(1) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    line.push('\n');
    line
}

fn milliseconds(seconds: f64) -> String {
    let milliseconds = seconds * 1e3;
    if milliseconds < 10.0 {
        format!("{milliseconds:.2} ms")
    } else {
        format!("{milliseconds:.0} ms")
    }
}
