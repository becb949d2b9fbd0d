//! What machines gave: a line for each run that was recorded, and the README's table of them.
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::table::Beside;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Day of the commit that was measured, or of the run.
    date: String,
    /// The version of this project.
    commit: String,
    /// The machine's processor: how many, what they are, which instructions they have.
    processor: String,
    /// What was measured: a part of the bench.
    part: String,
    /// Turns whose medians these are; the fewest that a figure had.
    rounds: usize,
    figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figure {
    what: String,
    measured: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    verdict: String,
}

/// A row of the README's table: what people call it, and how the figures' names begin.
const ROWS: [(&str, &str); 5] = [
    ("decode", "decode, 2 threads, "),
    ("prompt", "prefill 512, 2 threads, "),
    ("decode over 2 workers of 1 core each", "decode over 2 pinned workers of 1 thread, "),
    ("prompt over the same", "prefill 512 over 2 pinned workers, "),
    ("8 sequences at once, with their prompts", "8 sequences decoded together, 2 threads, "),
];
/// Its columns, and how the figures' names end.
const COLUMNS: [(&str, &str); 3] = [("bf16", "as-stored"), ("8 bits", "q8"), ("4 bits", "q4")];

impl Record {
    /// What a run gave on this machine; a figure is its name, what was measured and what that is beside, and how it stands
    /// to its bar.
    ///
    /// # Errors
    /// If nobody can say which version this is.
    pub(crate) fn new(
        part: &str,
        rounds: usize,
        figures: impl IntoIterator<Item = (String, String, Option<Beside>, String)>,
    ) -> Result<Record> {
        let figures = figures.into_iter().map(|(what, measured, beside, verdict)| Figure {
            what,
            measured,
            beside,
            verdict,
        });
        Ok(Record {
            date: said("date", &["-u", "+%Y-%m-%d"])?,
            commit: said("git", &["describe", "--always", "--dirty"])?,
            processor: processor(),
            part: part.to_owned(),
            rounds,
            figures: figures.collect(),
        })
    }

    /// Adds it to `DIR/PART.jsonl`.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn append(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}.jsonl", self.part));
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .with_context(|| format!("cannot add to {}", path.display()))
    }

    /// All records of a part, the oldest first.
    ///
    /// # Errors
    /// If a line is not one.
    fn all(lines: &str) -> Result<Vec<Record>> {
        let records = lines.lines().enumerate().map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {} is no record", index + 1))
        });
        records.collect()
    }

    /// What the figure with this name was beside.
    fn beside(&self, what: &str) -> Option<&Beside> {
        self.figures.iter().find(|figure| figure.what == what)?.beside.as_ref()
    }
}

/// The README's tables of what `DIR/engine.jsonl` has.
///
/// # Errors
/// If it cannot be read, or a line of it is no record.
pub(crate) fn tables_of(directory: &Path) -> Result<String> {
    let path = directory.join("engine.jsonl");
    let lines = std::fs::read_to_string(&path);
    let lines = lines.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(tables(&Record::all(&lines).with_context(|| path.display().to_string())?))
}

/// Of each processor the newest figures, as a table.
fn tables(records: &[Record]) -> String {
    let mut processors: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        let of_it = |others: &&mut Vec<&Record>| others[0].processor == record.processor;
        match processors.iter_mut().find(of_it) {
            Some(others) => others.insert(0, record),
            None => processors.push(vec![record]),
        }
    }
    let tables = processors.into_iter().map(|newest| {
        let record = newest[0];
        // Some runs measure a part of it.
        let beside = |what: String| newest.iter().find_map(|record| record.beside(&what));
        let [first, second, third] = COLUMNS.map(|(name, _)| name);
        let mut text = format!(
            "{} ({}, medians of {} turns):\n\n| tokens per second | {first} | {second} | {third} |\n|---|---|---|---|\n",
            record.processor, record.date, record.rounds,
        );
        for (name, begins) in ROWS {
            let cells = COLUMNS.map(|(_, ends)| beside(format!("{begins}{ends}")));
            if cells.iter().any(Option::is_some) {
                let [first, second, third] = cells.map(|cell| cell.map_or("".into(), cell_text));
                text += &format!("| {name} | {first} | {second} | {third} |\n");
            }
        }
        text
    });
    tables.collect::<Vec<_>>().join("\n")
}

fn cell_text(beside: &Beside) -> String {
    let number = |rate: f64| match rate < 100.0 {
        true => format!("{rate:.1}"),
        false => format!("{rate:.0}"),
    };
    format!("{} ({} {})", number(beside.ours), beside.other, number(beside.theirs))
}

/// This machine's processors, as they describe themselves.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    described(count, &text)
}

/// Model names say little on virtual machines: family and model do, and the best instructions.
fn described(count: usize, text: &str) -> String {
    let field = |key: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
    };
    let flags: Vec<&str> = field("flags").split(' ').collect();
    let known = [
        ("amx_bf16", "AMX"),
        ("avx512_bf16", "AVX-512 with BF16"),
        ("avx512_vnni", "AVX-512 with VNNI"),
        ("avx512f", "AVX-512"),
        ("avx2", "AVX2"),
    ];
    let best = known.into_iter().find(|(flag, _)| flags.contains(flag));
    let best = best.map_or(std::env::consts::ARCH, |(_, name)| name);
    let (family, model) = (field("cpu family"), field("model"));
    format!("{count} × {}, family {family}, model {model}, {best}", field("model name"))
}

/// What a program prints on its only line.
fn said(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let done = command.current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output();
    let done = done.with_context(|| format!("cannot run {program}"))?;
    ensure!(done.status.success(), "{program} {args:?} ended with {}", done.status);
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = include_str!("../../benches/results/engine.jsonl");
    const README: &str = include_str!("../../../README.md");

    #[test]
    fn the_readme_has_the_newest_record_of_each_processor() {
        let tables = tables(&Record::all(ENGINE).unwrap());
        assert!(
            README.contains(&tables),
            "the section on speed is to have what `cake-bench --tables` prints:\n{tables}"
        );
    }

    #[test]
    fn a_newer_record_of_a_processor_takes_the_place_of_an_older_one() {
        let record = |processor: &str, date: &str, ours| Record {
            date: date.into(),
            commit: "abc".into(),
            processor: processor.into(),
            part: "engine".into(),
            rounds: 3,
            figures: vec![Figure {
                what: "decode, 2 threads, q8".into(),
                measured: String::new(),
                beside: Some(Beside { other: "llama.cpp".into(), ours, theirs: 100.4 }),
                verdict: "met".into(),
            }],
        };
        let all = [record("x", "1", 10.0), record("y", "2", 20.0), record("x", "3", 30.25)];
        let text = tables(&all);
        assert!(!text.contains("10.0") && text.find("x (3").unwrap() < text.find("y (2").unwrap());
        assert!(text.contains("| decode |  | 30.2 (llama.cpp 100) |  |\n"), "{text}");
        assert_eq!(text.matches("| decode").count(), 2);
    }

    #[test]
    fn a_processor_is_its_name_its_model_and_its_best_instructions() {
        let text = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx avx2\n";
        assert_eq!(described(2, text), "2 × AMD EPYC, family 25, model 1, AVX2");
    }
}
