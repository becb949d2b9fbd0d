//! Experts of a layer in one tensor, as MLX has them, and as modules of their own.

use std::sync::atomic::AtomicU64;

use cake_checkpoint::Checkpoint;
use serde_json::{Value, json};

use super::*;
use crate::testing::{GOLDEN, StopsAfter};

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
            let by = changed.by.unwrap();
            assert!(by.mean < 0.3 / 15.0 && by.largest < 4.0 / 15.0, "{changed:?}");
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

fn copy(golden: &str, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(Path::new(GOLDEN).join(golden)).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A golden model with experts of which one tensor was changed or added: its header's entry and, if it is new, its bytes.
fn changed(home: &Path, name: &str, change: impl Fn(&mut Value, usize) -> Vec<u8>) -> Source {
    let to = home.join(name);
    copy("qwen3-moe", &to);
    let path = to.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
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
        let entry = json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
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

/// The model, written for `format` in files of at most so many bytes.
fn rewrite(source: Source, format: HubFormat, path: &Path, most_bytes: u64) -> Job {
    let checkpoint = source.checkpoint().unwrap();
    let target = Target::Directory(path.into());
    to_hub(source, &checkpoint, format, Encode::AsStored, target, most_bytes).unwrap()
}

fn configuration(directory: &Path) -> Value {
    serde_json::from_slice(&fs::read(directory.join("config.json")).unwrap()).unwrap()
}

#[test]
fn experts_unstacked_and_stacked_again_are_what_mlx_lm_wrote() {
    let home = tempfile::tempdir().unwrap();
    let (apart, together) = (home.path().join("apart"), home.path().join("together"));
    let before = golden("qwen3-moe-mlx4");
    let job = rewrite(golden("qwen3-moe-mlx4"), HubFormat::Safetensors, &apart, u64::MAX);
    job.run(OPTIONS, &Quiet).unwrap();
    let found = Source::open(apart.to_str().unwrap()).unwrap();
    assert!(!found.tensors.iter().any(|tensor| tensor.name.contains("switch_mlp")));
    let model = found.checkpoint().unwrap();
    assert!(model.warnings.is_empty(), "{:?}", model.warnings);
    let encoding = |name: &str| model.tensor(name).unwrap().encoding.unwrap().to_string();
    assert_eq!(encoding("model.layers.1.mlp.gate.weight"), "affine-8-64");
    assert_eq!(encoding("model.layers.1.mlp.experts.3.down_proj.weight"), "affine-4-64");

    rewrite(found, HubFormat::Mlx, &together, 40_000).run(OPTIONS, &Quiet).unwrap();
    let found = Source::open(together.to_str().unwrap()).unwrap();
    assert!(found.files.len() > 5, "{} files", found.files.len());
    let difference = compare((&before, None), (&found, None), 2, &Quiet).unwrap();
    assert_eq!(difference.equal, before.tensors.len(), "{difference:?}");
    assert!(difference.added.is_empty(), "{difference:?}");
    let said = |directory: &Path| configuration(directory)["quantization"].clone();
    assert_eq!(said(&together), said(&Path::new(GOLDEN).join("qwen3-moe-mlx4")));
}

#[test]
fn a_stack_with_bits_of_its_own_keeps_them_unstacked_and_stacked() {
    let home = tempfile::tempdir().unwrap();
    let odd = home.path().join("odd");
    // The usual form is another one now, and all that has the former says so.
    copy("qwen3-moe-mlx4", &odd);
    let mut config = configuration(&odd);
    let source = Source::open(odd.to_str().unwrap()).unwrap();
    let modules = source.tensors.iter().filter_map(|it| it.name.strip_suffix(".scales"));
    for key in ["quantization", "quantization_config"] {
        let said = config[key].as_object_mut().unwrap();
        said.insert("bits".into(), 8.into());
        for module in modules.clone().filter(|module| !module.ends_with("mlp.gate")) {
            said.insert(module.to_owned(), json!({"group_size": 64, "bits": 4}));
        }
    }
    fs::write(odd.join("config.json"), config.to_string()).unwrap();
    let stack = "model.layers.2.mlp.switch_mlp.up_proj";
    assert!(config["quantization"].get(stack).is_some());

    let mut source = Source::open(odd.to_str().unwrap()).unwrap();
    for (format, name) in [(HubFormat::Safetensors, "apart"), (HubFormat::Mlx, "together")] {
        let model = source.checkpoint().unwrap();
        let expert = "model.layers.2.mlp.experts.1.up_proj.weight";
        assert_eq!(model.tensor(expert).unwrap().encoding.unwrap().to_string(), "affine-4-64");
        let path = home.path().join(name);
        rewrite(source, format, &path, u64::MAX).run(OPTIONS, &Quiet).unwrap();
        source = Source::open(path.to_str().unwrap()).unwrap();
    }
    let before = golden("qwen3-moe-mlx4");
    let difference = compare((&before, None), (&source, None), 2, &Quiet).unwrap();
    assert_eq!((difference.equal, difference.added.len()), (before.tensors.len(), 0));
    assert_eq!(
        configuration(&home.path().join("together"))["quantization"],
        config["quantization"]
    );
}

#[test]
fn a_stack_is_finished_after_a_stop_anywhere() {
    let home = tempfile::tempdir().unwrap();
    let read = |directory: &Path| {
        let mut files: Vec<(String, Vec<u8>)> = (fs::read_dir(directory).unwrap().flatten())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    };
    let to = |name: &str| {
        let path = home.path().join(name);
        (rewrite(golden("qwen3-moe"), HubFormat::Mlx, &path, 60_000), path)
    };
    let (job, whole) = to("whole");
    job.run(OPTIONS, &Quiet).unwrap();
    let whole = read(&whole);
    assert!(whole.len() > 10, "{} files", whole.len());
    for stop in (2..130).step_by(11) {
        let (job, path) = to(&format!("stopped-{stop}"));
        job.run(OPTIONS, &StopsAfter(AtomicU64::new(stop))).unwrap_err();
        assert!(!path.exists());
        let outcome = job.run(OPTIONS, &Quiet).unwrap();
        assert!(outcome.resumed > 0, "after {stop}");
        assert!(read(&path) == whole, "after {stop}");
    }
}

#[test]
fn experts_stored_column_by_column_stay_so_or_are_refused() {
    let home = tempfile::tempdir().unwrap();
    for name in ["gpt-oss", "llama4"] {
        let before = golden(name);
        let path = home.path().join(format!("{name}-same"));
        let same = converted(name, HubFormat::Safetensors, Encode::AsStored, &path);
        let difference = compare((&before, None), (&same, None), 2, &Quiet).unwrap();
        assert_eq!(difference.equal, before.tensors.len(), "{difference:?}");
        assert_eq!(same.tensors.len(), before.tensors.len());
        let path = home.path().join(format!("{name}-wide"));
        let encode = Encode::Float(FloatType::F32);
        let wide = converted(name, HubFormat::Safetensors, encode, &path);
        let [before, wide] = [&before, &wide].map(|source| source.checkpoint().unwrap());
        let expert =
            before.tensors.iter().find(|it| it.name.ends_with(".experts.2.up_proj.weight"));
        let expert = expert.unwrap();
        let narrow = before.map(expert).unwrap();
        let found = wide.map(wide.tensor(&expert.name).unwrap()).unwrap();
        assert_eq!(found.shape(), narrow.shape());
        let (found, _) = found.bytes().as_chunks::<4>();
        let (narrow, _) = narrow.bytes().as_chunks::<2>();
        // A bf16 is the first half of the same f32.
        assert!(found.iter().zip(narrow).all(|(wide, half)| wide[2..] == half[..]));
        let refused = |error: Error| {
            let error = error.to_string();
            assert!(error.contains("ForCausalLM") && error.contains("column by column"), "{error}");
        };
        let no = home.path().join("no");
        for (format, encode) in [
            (HubFormat::Mlx, Encode::AsStored),
            (HubFormat::Mlx, Encode::Affine(Scheme::Q4)),
            (HubFormat::Safetensors, Encode::Affine(Scheme::Q4)),
        ] {
            refused(job(name, format, encode, &no).map(|_| ()).unwrap_err());
        }
        let target = Target::File(no);
        let job = crate::apr::convert(golden(name), &before, Encode::AsStored, target);
        refused(job.map(|_| ()).unwrap_err());
    }
}
