//! What was measured, beside what was asked for: as an aligned table for people, as JSON for
//! programs.
use serde::{Deserialize, Serialize};

/// All figures of a run, in the order they were measured.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    /// The machine and its state.
    machine: String,
    /// Turns whose medians the figures are, where there are several; the fewest that one had.
    pub(crate) rounds: usize,
    rows: Vec<Row>,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    /// For people, with units.
    measured: String,
    /// The number that is compared with the bar, or that informs.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    bar: String,
    verdict: Verdict,
}

/// A rate, and that of another program in the same turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// The other program.
    pub(crate) other: String,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
}

/// How a figure stands to its bar.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Met,
    NotMet,
    /// Nothing was asked of it.
    ForInformation,
    /// It could not be measured here, and why.
    NotShown(String),
}

/// What was measured: the number, and how to say it.
#[derive(Debug)]
pub(crate) struct Measured {
    value: f64,
    text: String,
    beside: Option<Beside>,
}

impl Measured {
    /// A number and its words.
    pub(crate) fn new(value: f64, text: String) -> Self {
        Self { value, text, beside: None }
    }

    /// A ratio with four digits, and what it is made of.
    pub(crate) fn ratio(value: f64, made_of: &str) -> Self {
        Self::new(value, format!("{value:.4} ({made_of})"))
    }

    /// The same, with the rates that it is the ratio of.
    pub(crate) fn beside(mut self, other: &str, ours: f64, theirs: f64) -> Self {
        self.beside = Some(Beside { other: other.to_owned(), ours, theirs });
        self
    }
}

impl Table {
    /// A table of figures to be measured on this machine.
    pub(crate) fn new(machine: String) -> Self {
        Self { machine, rounds: 0, rows: Vec::new() }
    }

    /// A figure that should be at most `most`; `bar` says that bound in words.
    pub(crate) fn at_most(&mut self, what: &str, measured: Measured, most: f64, bar: &str) {
        let met = measured.value <= most;
        self.judged(what, measured, bar, met);
    }

    /// A figure whose caller knows whether it meets the bar.
    pub(crate) fn judged(&mut self, what: &str, measured: Measured, bar: &str, met: bool) {
        let verdict = if met { Verdict::Met } else { Verdict::NotMet };
        self.push(what, Some(measured), bar, verdict);
    }

    /// A figure without a bar.
    pub(crate) fn inform(&mut self, what: &str, measured: Measured) {
        self.push(what, Some(measured), "", Verdict::ForInformation);
    }

    /// A figure that cannot be measured here.
    pub(crate) fn not_shown(&mut self, what: &str, bar: &str, why: String) {
        self.push(what, None, bar, Verdict::NotShown(why));
    }

    fn push(&mut self, what: &str, measured: Option<Measured>, bar: &str, verdict: Verdict) {
        let value = measured.as_ref().map(|measured| measured.value);
        let (text, beside) =
            measured.map_or((String::from("-"), None), |measured| (measured.text, measured.beside));
        let (what, bar) = (what.into(), bar.into());
        let row = Row { what, measured: text, value, beside, bar, verdict };
        eprintln!("  {}: {} [{}]", row.what, row.measured, row.verdict.text());
        self.rows.push(row);
    }

    /// Each figure: its name, what was measured, what that is beside, and how it stands to its bar.
    pub(crate) fn figures(
        &self,
    ) -> impl Iterator<Item = (String, String, Option<Beside>, String)> + '_ {
        self.rows.iter().map(|row| {
            (row.what.clone(), row.measured.clone(), row.beside.clone(), row.verdict.text())
        })
    }

    /// The machine, then a line per figure.
    pub(crate) fn render(&self) -> String {
        let mut lines = vec![["what", "measured", "bar", "verdict"].map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| {
            [row.what.clone(), row.measured.clone(), row.bar.clone(), row.verdict.text()]
        }));
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let (what, measured, bar) = (width(0), width(1), width(2));
        let line = |cells: &[String; 4]| {
            let [a, b, c, d] = cells;
            format!("{a:<what$} | {b:<measured$} | {c:<bar$} | {d}\n")
        };
        let table: String = lines.iter().map(line).collect();
        format!("{}\n\n{table}", self.machine)
    }
}

impl Verdict {
    fn text(&self) -> String {
        match self {
            Self::Met => "met".to_owned(),
            Self::NotMet => "NOT MET".to_owned(),
            Self::ForInformation => "for information".to_owned(),
            Self::NotShown(why) => format!("NOT SHOWN: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_bars_are_inclusive() {
        let mut table = Table::new("machine".into());
        table.at_most("peak", Measured::new(150.0, "150 MiB".into()), 150.0, "≤ 150 MiB");
        table.at_most("ratio", Measured::ratio(1.5, "3 of 2"), 1.1, "≤ 1.1");
        table.not_shown("kill", "none", "no cgroup".into());
        let text = table.render();
        let columns = |line: &str| {
            let position = |at: usize| line.chars().take(at).filter(|&c| c == '|').count();
            (0..line.chars().count())
                .filter(|&at| position(at) != position(at + 1))
                .collect::<Vec<_>>()
        };
        let mut lines = text.lines().skip(2);
        let first = columns(lines.next().unwrap());
        assert!(lines.all(|line| columns(line) == first), "{text}");
        assert!(text.contains("| met\n") && text.contains("| NOT MET\n"), "{text}");
        assert!(text.contains("NOT SHOWN: no cgroup"), "{text}");
    }
}
