//! Conversions, by what comes out.

mod experts;
mod foreign;
mod narrow;
mod weighed;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cake_checkpoint::{Encoding, FloatType, GgmlType, Scheme};

use super::{Encode, HubFormat, to_hub};
use crate::error::Unsupported;
use crate::testing::{Quiet, golden};
use crate::{Error, Job, Numbers, Options, Source, Target, compare};

const OPTIONS: Options = Options { force: false, threads: 2 };

fn job(golden_name: &str, format: HubFormat, encode: Encode, path: &Path) -> Result<Job, Error> {
    let source = golden(golden_name);
    let checkpoint = source.checkpoint()?;
    to_hub(source, &checkpoint, format, encode, Target::Directory(path.into()), u64::MAX)
}

/// Converts a golden model, and opens what came of it.
fn converted(golden: &str, format: HubFormat, encode: Encode, path: &Path) -> Source {
    job(golden, format, encode, path).unwrap().run(OPTIONS, &Quiet).unwrap();
    Source::open(path.to_str().unwrap()).unwrap()
}

#[test]
fn packed_weights_are_what_workers_get_and_the_configuration_says_so() {
    let home = tempfile::tempdir().unwrap();
    let schemes = [(Scheme::Q8, 8), (Scheme::Q6, 6), (Scheme::Q5, 5), (Scheme::Q4, 4)];
    for (encode, bits) in schemes {
        let layers = format!("affine-{bits}-64");
        for format in [HubFormat::Safetensors, HubFormat::Mlx] {
            let path = home.path().join(format!("{encode}-{format:?}"));
            let found = converted("llama3-tied", format, Encode::Affine(encode), &path);
            let checkpoint = found.checkpoint().unwrap();
            assert!(found.warnings.is_empty() && checkpoint.warnings.is_empty());
            let named = |name: &str| checkpoint.tensor(name).unwrap().encoding.unwrap().to_string();
            assert_eq!(named("model.layers.1.mlp.up_proj.weight"), layers);
            assert_eq!(named("model.embed_tokens.weight"), "affine-8-64");
            assert_eq!(
                path.join("model.safetensors.index.json").exists(),
                format == HubFormat::Mlx
            );
            // The numbers are those of before, but for half a step, and what is furthest out for some.
            let before = golden("llama3-tied");
            let same = before.checkpoint().unwrap();
            let all = (&before, Some(&same));
            let found = compare(all, (&found, Some(&checkpoint)), 2, &Quiet).unwrap();
            assert!(found.added.is_empty() && found.removed.is_empty(), "{found:?}");
            let steps = f64::from((1u32 << bits) - 1);
            for changed in &found.changed {
                let by = changed.by.unwrap();
                assert!(by.mean < 0.3 / steps && by.largest < 4.0 / steps, "{changed:?}");
                assert_eq!(by.odd, 0, "{changed:?}");
            }
        }
    }
}

#[test]
fn plain_numbers_of_another_type_and_back_are_the_same() {
    let home = tempfile::tempdir().unwrap();
    let wide = home.path().join("wide");
    let found = converted("qwen2", HubFormat::Safetensors, Encode::Float(FloatType::F32), &wide);
    assert!(found.tensors.iter().all(|tensor| tensor.dtype.name() == "F32"));
    let config = fs::read_to_string(wide.join("config.json")).unwrap();
    assert!(config.contains("\"float32\""), "{config}");
    let checkpoint = found.checkpoint().unwrap();
    let back = home.path().join("back");
    let target = Target::Directory(back.clone());
    let encode = Encode::Float(FloatType::BF16);
    let job = to_hub(found, &checkpoint, HubFormat::Safetensors, encode, target, u64::MAX);
    job.unwrap().run(OPTIONS, &Quiet).unwrap();
    let before = golden("qwen2");
    let after = Source::open(back.to_str().unwrap()).unwrap();
    let found = compare((&before, None), (&after, None), 2, &Quiet).unwrap();
    assert_eq!((found.equal, found.changed.len()), (before.tensors.len(), 0), "{found:?}");
}

#[test]
fn packed_weights_become_plain_ones_in_files_of_some_size() {
    let home = tempfile::tempdir().unwrap();
    let (source, path) = (golden("qwen2-mlx4"), home.path().join("plain"));
    let checkpoint = source.checkpoint().unwrap();
    let encode = Encode::Float(FloatType::F16);
    let target = Target::Directory(path.clone());
    let job = to_hub(source, &checkpoint, HubFormat::Safetensors, encode, target, 100_000).unwrap();
    job.run(OPTIONS, &Quiet).unwrap();
    let found = Source::open(path.to_str().unwrap()).unwrap();
    let plain = found.checkpoint().unwrap();
    assert!(plain.config.quantization.is_none() && found.files.len() > 2);
    let float = Encoding::Float(FloatType::F16);
    for numbers in Numbers::of(&found, Some(&plain)) {
        assert_eq!(numbers.encoding, Some(float), "{}", numbers.name);
    }
    // A matrix of f16 holds what 4 bits times an f16 scale make, but for the rounding of their sum.
    let before = golden("qwen2-mlx4");
    let found = compare((&before, Some(&checkpoint)), (&found, Some(&plain)), 2, &Quiet).unwrap();
    assert!(found.added.is_empty() && found.removed.is_empty(), "{found:?}");
    for changed in &found.changed {
        assert!(changed.by.unwrap().largest < 1e-3, "{changed:?}");
    }
}

#[test]
fn what_a_format_does_not_have_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let error = job("llama", HubFormat::Safetensors, Encode::Blocks(GgmlType::Q8_0), home.path())
        .unwrap_err();
    assert!(
        error.to_string().contains("stored as q8_0, which safetensors does not have"),
        "{error}"
    );
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn encodings_are_called_by_their_names() {
    for encode in Encode::ALL {
        assert_eq!(encode.to_string().parse(), Ok(encode));
    }
    let error = "q3".parse::<Encode>().unwrap_err().to_string();
    assert!(
        error.contains("as-stored, f32, f16, bf16, q8, q6, q5, q4, q8_0, q4_0, q6_k, q5_k, q4_k"),
        "{error}"
    );
}

#[test]
fn what_is_outside_the_layers_and_unused_within_comes_along() {
    let home = tempfile::tempdir().unwrap();
    for name in ["starcoder2", "gemma4-e", "gemma3n"] {
        for format in [HubFormat::Safetensors, HubFormat::Mlx] {
            let path = home.path().join(format!("{name}-{format:?}"));
            let found = converted(name, format, Encode::AsStored, &path);
            let before = golden(name);
            let (same, there) = (before.checkpoint().unwrap(), found.checkpoint().unwrap());
            assert_eq!(there.config, same.config, "{name}");
            let all = (&before, Some(&same));
            let found = compare(all, (&found, Some(&there)), 2, &Quiet).unwrap();
            assert!(found.added.is_empty() && found.removed.is_empty(), "{found:?}");
            assert!(found.changed.is_empty(), "{found:?}");
        }
    }
    let path = home.path().join("packed");
    let found = converted("gemma3n", HubFormat::Safetensors, Encode::Affine(Scheme::Q4), &path);
    let checkpoint = found.checkpoint().unwrap();
    let stored = |name: &str| checkpoint.tensor(name).unwrap().encoding.unwrap().to_string();
    assert_eq!(stored("model.layers.0.laurel.linear_left.weight"), "affine-4-64");
    assert_eq!(stored("model.altup_projections.0.weight"), "affine-8-64", "as other ends");
    assert_eq!(stored("model.layers.0.altup.prediction_coefs.weight"), "BF16", "rows of four");
}

#[test]
fn what_mlx_has_in_another_form_is_not_written_for_it_nor_back() {
    let home = tempfile::tempdir().unwrap();
    let (hub, mlx) = (HubFormat::Safetensors, HubFormat::Mlx);
    let refused = |name: &str, format, encode| {
        let error = job(name, format, encode, home.path()).err();
        matches!(error, Some(Error::Unsupported(Unsupported::Architecture { .. })))
    };
    let (q4, f16) = (Encode::Affine(Scheme::Q4), Encode::Float(FloatType::F16));
    for name in ["lfm2", "qwen3_5", "granite-hybrid", "falcon-h1"] {
        assert!(refused(name, mlx, Encode::AsStored) && refused(name, hub, q4), "{name}");
        assert!(job(name, hub, f16, home.path()).is_ok(), "{name}");
    }
    // Where names alone differ, what is packed here keeps the Hub's, by which it is known.
    for name in ["laguna", "gemma4-moe", "ernie4-5-moe"] {
        for format in [hub, mlx] {
            let path = home.path().join(format!("{name}-{format:?}"));
            let found = converted(name, format, q4, &path).checkpoint().unwrap();
            let before = golden(name).checkpoint().unwrap();
            assert_eq!(found.config.layers, before.config.layers, "{name}");
        }
    }
    for name in [
        "lfm2-mlx4",
        "qwen3_5-mlx4",
        "falcon-h1-mlx4",
        "kimi-linear-mlx4",
        "laguna-mlx4",
        "gemma4-moe-mlx4",
        "ernie4-5-moe-mlx4",
    ] {
        assert!(refused(name, hub, f16), "{name}");
        for format in [hub, mlx] {
            let path = home.path().join(format!("{name}-{format:?}"));
            let found = converted(name, format, Encode::AsStored, &path);
            let before = golden(name);
            assert_eq!(found.checkpoint().unwrap().config, before.checkpoint().unwrap().config);
            let names = |source: &Source| -> BTreeSet<String> {
                source.tensors.iter().map(|tensor| tensor.name.clone()).collect()
            };
            assert!(format == hub || names(&found) == names(&before), "{name}");
        }
    }
}
