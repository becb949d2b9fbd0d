//! GGUF files turned into the Hub's form, and into APR.

use std::path::Path;

use cake_checkpoint::{Checkpoint, Encoding, FloatType, RowsAt};

use super::{Encode, HubFormat, OPTIONS, to_hub};
use crate::testing::Quiet;
use crate::{Source, Target, apr};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden-gguf");

fn golden(name: &str) -> Source {
    Source::open(&format!("{GOLDEN}/{name}")).unwrap()
}

/// The numbers of a tensor, as the checkpoint gives its bytes to whoever computes with them.
fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name} is not there"));
    let mut bytes = vec![0; tensor.bytes as usize];
    checkpoint.read_at(tensor, 0, &mut bytes).unwrap();
    match tensor.encoding {
        Some(encoding @ Encoding::Ggml(kind)) => {
            let columns = tensor.shape[1] as usize / kind.block_bytes() * kind.block();
            let mut out = vec![0.0; tensor.shape[0] as usize * columns];
            encoding.decode_rows(RowsAt::start(columns), &[(tensor.dtype, &bytes)], &mut out);
            out
        }
        _ => {
            let float = FloatType::of(tensor.dtype).unwrap();
            let mut out = vec![0.0; bytes.len() / float.bytes()];
            float.widen(&bytes, &mut out);
            out
        }
    }
}

/// Every number is the same, to the bit, but those of norms that the Hub has without the 1 that is added to them.
fn check(name: &str, before: &Checkpoint, path: &Path) {
    let after = Checkpoint::open(path.to_str().unwrap()).unwrap();
    assert_eq!(after.config.architecture, before.config.architecture);
    assert_eq!(after.tensors.len(), before.tensors.len(), "{name}");
    for tensor in before.tensors.iter() {
        let mut expected = numbers(before, &tensor.name);
        if name.starts_with("gemma3") && tensor.name.contains("norm") {
            expected.iter_mut().for_each(|number| *number -= 1.0);
        }
        assert!(numbers(&after, &tensor.name) == expected, "{name} {}", tensor.name);
    }
    for text in ["tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(after.texts.has(text), before.texts.has(text), "{name} {text}");
    }
}

/// Rates, rows and columns are in a form of their own.
#[test]
fn delta_rules_are_not_yet_turned_into_the_hubs() {
    let home = tempfile::tempdir().unwrap();
    for name in ["qwen35-q4_0", "qwen35moe-bf16", "qwen3next-bf16"] {
        let before = golden(name).checkpoint().unwrap();
        let encode = Encode::Float(FloatType::F32);
        let (target, format) = (Target::Directory(home.path().join("hub")), HubFormat::Safetensors);
        let hub = to_hub(golden(name), &before, format, encode, target, u64::MAX).unwrap_err();
        let target = Target::File(home.path().join("model.apr"));
        let apr = apr::convert(golden(name), &before, encode, target).unwrap_err();
        for refusal in [hub, apr] {
            let said = refusal.to_string();
            assert!(said.contains("not yet turned into the Hub's form"), "{said}");
        }
    }
}

#[test]
fn files_of_llama_cpp_become_the_hubs() {
    let home = tempfile::tempdir().unwrap();
    // Rows in pairs, with divisors of frequencies, biases, folded norms, experts in one tensor, several files, convolutions, keys
    // of latents by themselves.
    let all = [
        "llama3-q4_k_m",
        "qwen2-bf16",
        "gemma3-q5_1",
        "qwen3moe-q4_k_m",
        "qwen3-split-q8_0",
        "lfm2moe-q8_0",
        "deepseek2-q4",
    ];
    for name in all {
        let before = golden(name).checkpoint().unwrap();
        let path = home.path().join(name);
        let encode = Encode::Float(FloatType::F32);
        let target = Target::Directory(path.clone());
        let format = HubFormat::Safetensors;
        let job = to_hub(golden(name), &before, format, encode, target, u64::MAX).unwrap();
        job.run(OPTIONS, &Quiet).unwrap();
        check(name, &before, &path);
        let path = home.path().join(format!("{name}.apr"));
        let target = Target::File(path.clone());
        let (job, lost) = apr::convert(golden(name), &before, encode, target).unwrap();
        assert!(lost.is_empty(), "{lost:?}");
        job.run(OPTIONS, &Quiet).unwrap();
        check(name, &before, &path);
    }
}

#[test]
fn blocks_are_no_numbers_of_the_hubs_and_those_of_rows_in_pairs_become_plain_in_apr() {
    let home = tempfile::tempdir().unwrap();
    let before = golden("llama-q6_k").checkpoint().unwrap();
    let target = Target::Directory(home.path().join("out"));
    let format = HubFormat::Safetensors;
    let refused = to_hub(golden("llama-q6_k"), &before, format, Encode::AsStored, target, u64::MAX);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("ggml-") && said.contains("--encode f32, f16 or bf16"), "{said}");
    let path = home.path().join("model.apr");
    let target = Target::File(path.clone());
    let job = apr::convert(golden("llama-q6_k"), &before, Encode::AsStored, target);
    let (job, lost) = job.unwrap();
    assert!(lost.iter().any(|it| it.contains("rows change places")), "{lost:?}");
    job.run(OPTIONS, &Quiet).unwrap();
    let after = Checkpoint::open(path.to_str().unwrap()).unwrap();
    let mut kept = 0;
    for tensor in before.tensors.iter() {
        let (expected, found) = (numbers(&before, &tensor.name), numbers(&after, &tensor.name));
        let stored = after.tensor(&tensor.name).unwrap().encoding;
        kept += usize::from(matches!(stored, Some(Encoding::Ggml(_))));
        let near = |(one, other): (&f32, &f32)| (one - other).abs() <= one.abs() / 1024.0 + 1e-7;
        assert!(expected.iter().zip(&found).all(near), "{}", tensor.name);
    }
    assert!(kept > 0);
}
