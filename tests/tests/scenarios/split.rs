//! Splitting changes nothing: any split and any prompt chunk gives the tokens, and the bits, of one process.
use cake_tests::master::{Answer, path, pins};
use cake_tests::{Golden, Master, TestWorker, WorkerOptions, golden};

/// Seed of the random splits; printed with them.
const SEED: u64 = 20_240_711;

#[track_caller]
fn assert_same(found: &Answer, alone: &Answer, what: &str) {
    assert_eq!(found.output_ids, alone.output_ids, "{what}: other tokens");
    assert_eq!(found.logprob_bits, alone.logprob_bits, "{what}: other log-probabilities");
}

/// Every way to cut the layers in two, over the same two workers.
fn every_cut(golden: &Golden) {
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let chunk = ["--chunk", "8"];
    let alone = Master::alone().answer(golden, &[], &chunk);
    assert_eq!(alone.output_ids, golden.greedy_ids);
    for &cut in &golden.begins[1..] {
        let place = [("a", 0, cut), ("b", cut, golden.num_layers)];
        let split = master.answer(golden, &place, &chunk);
        assert_eq!(split.stages.len(), 2, "cut at {cut}");
        assert_same(&split, &alone, &format!("cut at {cut}"));
    }
}

#[test]
fn every_cut_of_twelve_layers_gives_the_same_bits() {
    every_cut(&golden("llama-sharded"));
}

#[test]
fn every_cut_of_a_model_with_biases_gives_the_same_bits() {
    every_cut(&golden("qwen2"));
}

#[test]
fn every_cut_of_a_model_whose_rows_carry_more_gives_the_same_bits() {
    every_cut(&golden("gemma4-e"));
}

#[test]
fn every_family_gives_the_same_bits_over_three_workers_and_in_other_chunks() {
    let names = ["a", "b", "c"];
    let workers = TestWorker::several(&names);
    let master = Master::over(&workers);
    for name in &golden::names() {
        let golden = golden(name);
        let alone = Master::alone().answer(&golden, &[], &["--chunk", "8"]);
        let place = golden.spread(&names);
        let split = master.answer(&golden, &place, &["--chunk", "5"]);
        assert_eq!(split.stages.len(), golden.begins.len().min(3), "{name}");
        assert_same(&split, &alone, name);
    }
}

#[test]
fn experts_in_slices_over_three_workers_give_the_same_bits() {
    let names = ["a", "b", "c"];
    let workers = TestWorker::several(&names);
    let master = Master::over(&workers);
    for name in [
        "qwen3-moe",
        "qwen3-moe-mlx4",
        "qwen2-moe",
        "deepseek-v3",
        "gemma4-moe",
        "qwen3_5-moe",
        "nemotron-h-latent",
    ] {
        let golden = golden(name);
        let alone = Master::alone().answer(&golden, &[], &["--chunk", "8"]);
        let sliced = ["--chunk", "5", "--expert-slices", "2"];
        let plan = |more: &[&str]| {
            let model = path(&golden.path);
            let args = ["plan", &model, "--json", "--expert-slices", "2"];
            master.json(&[&args[..], more].concat())
        };
        let plan = plan(&[]);
        assert_eq!(plan["parts_of"], golden.num_layers, "{plan}");
        // Attention, a slice, and another one with what follows, in each layer that has experts.
        let stages = plan["plan"]["stages"].as_array().expect("stages");
        let last = stages.last().and_then(|stage| stage["layers"].as_str()).expect("a range");
        let (_, parts) = last.split_once("..").expect("two numbers");
        let parts: usize = parts.parse().expect("a number");
        // Both cuts are within a layer: after its attention, and between its slices.
        let (first, second) = (parts - 5, parts - 1);
        let place = [("a", 0, first), ("b", first, second), ("c", second, parts)];
        let split = master.answer(&golden, &place, &sliced);
        assert_eq!(split.stages.len(), 3, "{name}");
        assert_same(&split, &alone, name);
    }
    let dense = golden("llama");
    let args = ["plan", &path(&dense.path), "--expert-slices", "2"];
    let refusal = master.run(&args).refusal();
    assert!(refusal.contains("--expert-slices is 2") && refusal.contains("no layer"), "{refusal}");
}

#[test]
fn random_splits_over_one_to_four_workers_give_the_same_bits() {
    println!("seed {SEED}");
    let golden = golden("llama-sharded");
    let names = ["a", "b", "c", "d"];
    let workers = TestWorker::several(&names);
    let master = Master::over(&workers);
    let alone = Master::alone().answer(&golden, &[], &[]);
    let mut random = SEED;
    for _ in 0..10 {
        let place = random_split(golden.num_layers, &names, &mut random);
        let more: Vec<&str> = names
            .iter()
            .filter(|name| place.iter().all(|(used, ..)| used != *name))
            .flat_map(|unused| ["--exclude", unused])
            .collect();
        let split = master.answer(&golden, &place, &more);
        assert_eq!(split.stages.len(), place.len(), "{place:?}");
        assert_same(&split, &alone, &format!("{place:?}"));
    }
}

#[test]
fn the_prompt_chunk_changes_nothing_alone_or_over_workers() {
    for (name, numerics) in [
        ("llama-sharded", "exact"),
        ("llama-sharded", "fast"),
        ("qwen2", "exact"),
        ("qwen2-mlx4", "exact"),
        ("qwen2-mlx4", "fast"),
        ("qwen2-mlx4", "int8"),
    ] {
        let golden = golden(name);
        let workers = TestWorker::several(&["a", "b"]);
        let master = Master::over(&workers);
        let place = [("a", 0, 2), ("b", 2, golden.num_layers)];
        let arguments = |chunk| ["--numerics", numerics, "--chunk", chunk];
        let whole = Master::alone().answer(&golden, &[], &arguments("64"));
        for chunk in ["1", "2", "3", "5", "7", "16", "64"] {
            let alone = Master::alone().answer(&golden, &[], &arguments(chunk));
            let split = master.answer(&golden, &place, &arguments(chunk));
            let what = format!("{name}, {numerics}, chunk {chunk}");
            // Activations of 8 bits may choose another token.
            if numerics != "int8" {
                assert_eq!(split.output_ids, golden.greedy_ids, "{what}");
            }
            assert_same(&split, &alone, &what);
            // Stronger than promised: a row's arithmetic does not depend on the rows beside it.
            assert_same(&alone, &whole, &format!("{what} against 64"));
        }
    }
}

#[test]
fn a_seeded_random_answer_is_the_same_over_workers() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b", "c"]);
    let sampled = ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "11"];
    let args = |master: &Master, place: &[(&str, usize, usize)]| {
        let ids: Vec<String> = golden.prompt_ids.iter().map(u32::to_string).collect();
        let (model, ids) = (cake_tests::master::path(&golden.path), ids.join(","));
        let fixed =
            ["run", &model, "--prompt-ids", &ids, "--max-tokens", "24", "--ignore-eos", "--json"];
        let pins = cake_tests::master::pins(place);
        let pins = cake_tests::master::strs(&pins);
        let said = master.json(&[&fixed[..], &sampled[..], &pins[..]].concat());
        (said["output_ids"].clone(), said["logprobs"].clone())
    };
    let alone = args(&Master::alone(), &[]);
    let split = args(&Master::over(&workers), &[("a", 0, 3), ("b", 3, 8), ("c", 8, 12)]);
    assert_eq!(split, alone);
    assert_ne!(alone.0, serde_json::json!(golden.greedy_ids), "nothing was sampled");
}

/// One to four stages over the workers in order, each with at least one layer.
fn random_split<'a>(
    layers: usize,
    names: &[&'a str],
    random: &mut u64,
) -> Vec<(&'a str, usize, usize)> {
    let mut next = |below: usize| {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        (*random % below as u64) as usize
    };
    let stages = 1 + next(names.len());
    let mut cuts = std::collections::BTreeSet::from([0, layers]);
    while cuts.len() < stages + 1 {
        cuts.insert(1 + next(layers - 1));
    }
    let cuts: Vec<usize> = cuts.into_iter().collect();
    let bounds = cuts.windows(2).map(|pair| (pair[0], pair[1]));
    bounds.zip(names).map(|((start, end), name)| (*name, start, end)).collect()
}

#[test]
fn a_plan_says_when_processors_round_in_different_ways() {
    if cake_engine::arithmetic().expect("the processor is known") == "portable" {
        cake_tests::not_shown("this processor has one kind of arithmetic");
        return;
    }
    let golden = golden("llama");
    let plain = ("CAKE_CPU".to_owned(), "portable".to_owned());
    let options = WorkerOptions { env: vec![plain], ..WorkerOptions::default() };
    let workers = [TestWorker::start("plain", options), TestWorker::new("other")];
    let master = Master::over(&workers);
    let plan = |place: &[(&str, usize, usize)]| {
        let model = path(&golden.path);
        let pins = pins(place);
        let args = ["plan", &model].into_iter().chain(pins.iter().map(String::as_str));
        master.run(&args.collect::<Vec<_>>()).stderr
    };
    let mixed = plan(&[("plain", 0, 1), ("other", 1, golden.num_layers)]);
    assert!(mixed.contains("warning: processors of different kinds"), "{mixed}");
    assert!(mixed.contains("plain: portable, other: "), "{mixed}");
    let alike = plan(&[("plain", 0, golden.num_layers)]);
    assert!(!alike.contains("processors of different kinds"), "{alike}");
}
