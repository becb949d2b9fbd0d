//! Conversions, by what comes out.

use std::fs;
use std::path::Path;

use cake_checkpoint::{Checkpoint, Encoding, FloatType, Scheme};

use super::{Encode, HubFormat, to_hub};
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
    for (encode, layers) in [(Scheme::Q8, "affine-8-64"), (Scheme::Q4, "affine-4-64")] {
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
            // The numbers are those of before, but for half a step.
            let before = golden("llama3-tied");
            let same = before.checkpoint().unwrap();
            let all = (&before, Some(&same));
            let found = compare(all, (&found, Some(&checkpoint)), 2, &Quiet).unwrap();
            assert!(found.added.is_empty() && found.removed.is_empty(), "{found:?}");
            let steps = f64::from([15u32, 255][usize::from(encode == Scheme::Q8)]);
            for changed in &found.changed {
                let by = changed.by.unwrap();
                assert!(by.largest < 1.0 / steps && by.odd == 0, "{changed:?}");
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
fn mlx_has_the_experts_of_a_layer_in_one_tensor_and_they_come_back_as_they_were() {
    let home = tempfile::tempdir().unwrap();
    let stack = "model.layers.0.mlp.switch_mlp.gate_proj";
    let (before, same) = apart(golden("qwen3-moe"));
    for (encode, parts) in [(Encode::AsStored, 1), (Encode::Affine(Scheme::Q4), 3)] {
        let path = home.path().join(encode.to_string());
        let found = converted("qwen3-moe", HubFormat::Mlx, encode, &path);
        assert_eq!(found.tensors.iter().filter(|it| it.name.starts_with(stack)).count(), parts);
        assert!(found.tensors.iter().all(|it| !it.name.contains(".experts.")));
        let (found, model) = apart(found);
        assert!(model.warnings.is_empty(), "{:?}", model.warnings);
        let (all, stacked) = ((&before, Some(&same)), (&found, Some(&model)));
        let difference = compare(all, stacked, 2, &Quiet).unwrap();
        assert!(difference.added.is_empty() && difference.removed.is_empty(), "{difference:?}");
        assert_eq!(difference.changed.is_empty(), encode == Encode::AsStored);
        for changed in &difference.changed {
            assert!(changed.by.unwrap().largest < 1.0 / 15.0, "{changed:?}");
        }
        // Modules of their own again, for transformers.
        let (hub, again) = (HubFormat::Safetensors, home.path().join(format!("{encode}-again")));
        let (from, target) =
            (Source::open(path.to_str().unwrap()), Target::Directory(again.clone()));
        let job = to_hub(from.unwrap(), &model, hub, Encode::AsStored, target, u64::MAX).unwrap();
        job.run(OPTIONS, &Quiet).unwrap();
        let again = Source::open(again.to_str().unwrap()).unwrap();
        let model = again.checkpoint().unwrap();
        let difference = compare(stacked, (&again, Some(&model)), 2, &Quiet).unwrap();
        assert_eq!(difference.equal, Numbers::of(&again, Some(&model)).len(), "{difference:?}");
        assert!(difference.removed.is_empty(), "{difference:?}");
    }
}

/// A golden model with experts of which one tensor was changed or added: its header's entry and, if it is new, its bytes.
fn changed(
    home: &Path,
    name: &str,
    change: impl Fn(&mut serde_json::Value, usize) -> Vec<u8>,
) -> Source {
    let from = Path::new(crate::testing::GOLDEN).join("qwen3-moe");
    let to = home.join(name);
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(&from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let path = to.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let more = change(&mut header, data.len());
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&path, [&length[..], &header, data, &more].concat()).unwrap();
    Source::open(to.to_str().unwrap()).unwrap()
}

#[test]
fn experts_that_are_not_alike_are_refused_and_what_only_looks_like_one_is_none() {
    let home = tempfile::tempdir().unwrap();
    let to_mlx = |source: Source, encode| {
        let checkpoint = source.checkpoint().unwrap();
        let target = Target::Directory(home.path().join("out"));
        to_hub(source, &checkpoint, HubFormat::Mlx, encode, target, u64::MAX).map(|_| ())
    };
    let odd = changed(home.path(), "odd", |header, _| {
        header["model.layers.1.mlp.experts.2.up_proj.weight"]["dtype"] = "F16".into();
        vec![]
    });
    let error = to_mlx(odd, Encode::AsStored).unwrap_err().to_string();
    assert!(error.contains("switch_mlp.up_proj") && error.contains("expert 2"), "{error}");
    let buffer = changed(home.path(), "buffer", |header, end| {
        let entry =
            serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
        header["model.layers.0.mlp.experts.0.rotary_emb.inv_freq"] = entry;
        vec![0; 4]
    });
    assert!(to_mlx(buffer, Encode::AsStored).is_ok());
}

/// The model, with its experts' tensors each by itself.
fn apart(mut source: Source) -> (Source, Checkpoint) {
    let checkpoint = source.checkpoint().unwrap();
    source.unstack(&checkpoint.config).unwrap();
    (source, checkpoint)
}

#[test]
fn what_a_format_does_not_have_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let error = job("llama", HubFormat::Safetensors, Encode::Q8_0, home.path()).unwrap_err();
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
    let error = "q5".parse::<Encode>().unwrap_err().to_string();
    assert!(error.contains("as-stored, f32, f16, bf16, q8, q4, q8_0, q4_0"), "{error}");
}
