//! Nothing changed: every golden model and the demo's own answer to the bit as they did when `golden/record.json` was
//! made, with all instructions that this processor has, alone and over workers.
//!
//! The reference says what is right, to a tolerance (`golden.rs`); this says that a change of structure changed no
//! arithmetic. How the record is made: `golden/README.md`.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cake_checkpoint::{Checkpoint, ModelSpec};
use cake_engine::{MatrixKinds, Numerics, same_bits};
use cake_tests::master::Answer;
use cake_tests::{Master, TestWorker, demo_model, golden, not_shown, not_shown_of};
use serde::{Deserialize, Serialize};

/// What a model answered.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Recorded {
    output_ids: Vec<u32>,
    /// Bits of the log-probability (f32) of each.
    logprob_bits: Vec<u32>,
}

/// By name of the model, numerics, and name of the arithmetic (`cake_engine::arithmetic`).
type Record = BTreeMap<String, BTreeMap<String, BTreeMap<String, Recorded>>>;

/// A model and what it is asked.
struct Asked {
    name: String,
    path: PathBuf,
    layers: usize,
    /// Those that a stage may begin with.
    begins: Vec<usize>,
    kinds: MatrixKinds,
    prompt_ids: Vec<u32>,
    tokens: usize,
}

const NUMERICS: [(&str, Numerics); 2] = [("exact", Numerics::Exact), ("fast", Numerics::Fast)];
const WORKERS: [&str; 3] = ["a", "b", "c"];
/// Tokens of an answer of the demo's model.
const DEMO_TOKENS: usize = 24;

fn file() -> PathBuf {
    golden::directory().join("record.json")
}

fn config(path: &Path) -> ModelSpec {
    let json = std::fs::read(path.join("config.json")).expect("a configuration");
    ModelSpec::parse(&json).expect("a configuration that runs")
}

/// How the matrices of a model are stored.
fn kinds(path: &Path) -> MatrixKinds {
    let checkpoint = Checkpoint::open(path.to_str().expect("a path in UTF-8")).expect("a model");
    let mut kinds = MatrixKinds::default();
    checkpoint.tensors.iter().filter_map(|it| it.encoding).for_each(|it| kinds.add(it));
    kinds
}

/// Every model.
fn models() -> Vec<Asked> {
    let mut models: Vec<Asked> = golden::names()
        .into_iter()
        .map(|name| {
            let golden = cake_tests::golden(&name);
            let kinds = kinds(&golden.path);
            let (path, prompt_ids) = (golden.path, golden.prompt_ids);
            let (layers, tokens) = (golden.num_layers, golden.greedy_ids.len());
            Asked { name, path, layers, begins: golden.begins, kinds, prompt_ids, tokens }
        })
        .collect();
    let path = demo_model();
    let config = config(&path);
    models.push(Asked {
        name: "demo".to_owned(),
        kinds: kinds(&path),
        layers: config.layers.len(),
        begins: (0..config.layers.len()).collect(),
        prompt_ids: (1..=21).map(|id| id * 5).collect(),
        tokens: DEMO_TOKENS,
        path,
    });
    models
}

impl Asked {
    fn answer(&self, master: &Master, place: &[(&str, usize, usize)], numerics: &str) -> Answer {
        let more = ["--numerics", numerics];
        master.answer_of(&self.path, &self.prompt_ids, self.tokens, place, &more)
    }
}

/// The instructions that this processor has, as `CAKE_CPU` names them, and the name of their arithmetic.
fn instructions() -> Vec<(&'static str, &'static str)> {
    let best = cake_engine::arithmetic().expect("the processor is known");
    #[allow(unused_mut, reason = "some architectures have one kind")]
    let mut all = vec![("", best)];
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        all.push(("portable", "portable"));
        if has!("avx2") && has!("fma") && has!("f16c") {
            all.push(("avx2", "avx2"));
        }
        if best == "amx" {
            all.push(("avx512", "avx512-bf16")); // Who has tile registers has both.
        }
    }
    all
}

fn is_recording() -> bool {
    std::env::var_os("CAKE_RECORD").is_some()
}

/// Asserts that this is what the record says, or puts it there if that was asked for.
fn compare(
    record: &mut Record,
    asked: &Asked,
    (numerics_name, numerics): (&str, Numerics),
    arithmetic: &str,
    (answer, how): (Answer, &str),
) {
    let found = Recorded { output_ids: answer.output_ids, logprob_bits: answer.logprob_bits };
    let of_model = record.entry(asked.name.clone()).or_default();
    let known = of_model.entry(numerics_name.to_owned()).or_default();
    let agrees = |name: &&String| same_bits(name, arithmetic, numerics, asked.kinds);
    let what = format!("{} {numerics_name} with {arithmetic}, {how}", asked.name);
    match known.keys().find(agrees).cloned() {
        Some(name) => assert_eq!(found, known[&name], "{what}: other bits than the record has"),
        None if is_recording() => {
            known.insert(arithmetic.to_owned(), found);
        }
        None => {
            let why = format!("{what}: nobody recorded that arithmetic");
            match arithmetic {
                "amx" => not_shown_of("records of AMX", why),
                _ => not_shown(why),
            }
        }
    }
}

#[test]
fn every_model_answers_to_the_bit_as_it_was_recorded() {
    let mut record: Record = match std::fs::read(file()) {
        Ok(json) => serde_json::from_slice(&json).expect("a record"),
        Err(_) if is_recording() => Record::new(),
        Err(error) => panic!("{}: {error}", file().display()),
    };
    let models = models();
    let is_recorded = |name: &str| {
        record.get(name).is_some_and(|of| NUMERICS.iter().all(|(name, _)| of.contains_key(*name)))
    };
    let missing: Vec<_> = models.iter().map(|it| &*it.name).filter(|it| !is_recorded(it)).collect();
    assert!(missing.is_empty() || is_recording(), "not recorded: {missing:?}");
    let workers = TestWorker::several(&WORKERS);
    let spread = Master::over(&workers);
    // What they time of a model they remember.
    let alone =
        instructions().into_iter().map(|(cpu, arithmetic)| (Master::alone().cpu(cpu), arithmetic));
    let alone: Vec<_> = alone.collect();
    let own = cake_engine::arithmetic().expect("the processor is known");
    for asked in &models {
        for numerics in NUMERICS {
            for (master, arithmetic) in &alone {
                let answer = asked.answer(master, &[], numerics.0);
                compare(&mut record, asked, numerics, arithmetic, (answer, "alone"));
            }
            let place = golden::spread(asked.layers, &asked.begins, &WORKERS);
            let answer = asked.answer(&spread, &place, numerics.0);
            compare(&mut record, asked, numerics, own, (answer, "over workers"));
        }
    }
    assert_eq!(record.len(), models.len(), "models that are recorded");
    if is_recording() {
        let json = serde_json::to_string(&record).expect("a record is JSON");
        std::fs::write(file(), json + "\n").expect("written");
    }
}
