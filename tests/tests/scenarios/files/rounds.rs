//! From one form to another and to a run: the answers are the reference's.
use cake_tests::master::path;
use cake_tests::{Golden, Master, golden};

/// Writes a golden model anew, and asks what came of it what the golden model is asked.
fn answers_as_before(name: &str, command: &str, more: &[&str], out: &str) {
    let golden = golden(name);
    let master = Master::alone();
    let out = master.state().join(out);
    let (from, to) = (path(&golden.path), path(&out));
    let args = [&[command, &from], more, &["--out", &to]].concat();
    master.run(&args).success();
    let anew = Golden { path: out, ..golden.clone() };
    let answer = master.answer(&anew, &[], &["--numerics", "exact"]);
    assert_eq!(answer.output_ids, golden.greedy_ids, "{name}: {args:?}");
}

#[test]
fn merged_and_split_models_answer_as_before() {
    for name in ["llama-sharded", "qwen3-moe", "qwen2-mlx4"] {
        answers_as_before(name, "merge", &[], "merged");
        answers_as_before(name, "split", &["--max-shard-size", "60KB"], "split");
    }
}

#[test]
fn models_in_another_format_answer_as_before() {
    for name in ["llama", "qwen2", "qwen3", "qwen3-moe", "gemma3", "phi3"] {
        answers_as_before(name, "convert", &["--to", "mlx"], "mlx");
        answers_as_before(name, "convert", &["--to", "safetensors", "--encode", "f32"], "f32");
    }
    answers_as_before("qwen2-mlx4", "convert", &["--to", "safetensors", "--encode", "f32"], "f32");
    for name in ["llama", "qwen2", "qwen3", "qwen3-moe", "gemma3", "phi3"] {
        answers_as_before(name, "convert", &["--to", "apr"], "model.apr");
    }
}

#[test]
fn models_in_gguf_answer_as_before() {
    for name in ["llama", "qwen2", "gemma3", "qwen3-moe"] {
        answers_as_before(name, "convert", &["--to", "gguf"], "model.gguf");
    }
}

#[test]
fn weights_that_were_packed_before_answer_as_those_that_are_packed_on_their_way() {
    let golden = golden("llama3-tied");
    let master = Master::alone();
    let out = master.state().join("packed");
    let args =
        ["convert", &path(&golden.path), "--to", "mlx", "--encode", "q4", "--out", &path(&out)];
    master.run(&args).success();
    let packed = Golden { path: out, ..golden.clone() };
    let there = master.answer(&packed, &[], &[]);
    let on_the_way = master.answer(&golden, &[], &["--encode", "q4"]);
    assert_eq!(there.output_ids, on_the_way.output_ids);
    assert_eq!(there.logprob_bits, on_the_way.logprob_bits);
}
