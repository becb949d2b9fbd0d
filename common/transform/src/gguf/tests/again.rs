//! What is written, read by the container of the format.

use cake_checkpoint::{Checkpoint, Role};

use super::{GgufType, MODELS, Options, Quiet, expected, golden, job};

#[test]
fn what_is_written_is_read_as_the_same_model() {
    let home = tempfile::tempdir().unwrap();
    for (name, _) in MODELS {
        let path = home.path().join(format!("{name}.gguf"));
        let (job, _) = job(&golden(name), GgufType::F32, &path).unwrap();
        job.run(Options { force: true, threads: 2 }, &Quiet).unwrap();
        let open = |path: &std::path::Path| Checkpoint::open(path.to_str().unwrap());
        let before = open(&golden(name)).unwrap();
        let after = open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (one, other) = (&before.config, &after.config);
        assert_eq!(
            one.architecture == "MistralForCausalLM",
            other.architecture != one.architecture
        );
        assert_eq!((one.vocab_size, one.layers.len()), (other.vocab_size, other.layers.len()));
        assert_eq!(one.rotations, other.rotations, "{name}");
        assert_eq!(one.tie_word_embeddings, other.tie_word_embeddings, "{name}");
        let is_part = |name: &str| name.ends_with("scales") || name.ends_with("biases");
        let used = before.tensors.iter().filter(|it| it.role != Role::Ignored);
        for tensor in used.filter(|it| !is_part(&it.name)) {
            let mut values = expected(&before, &tensor.name);
            if *name == "gemma3" && tensor.name.contains("norm") {
                values.iter_mut().for_each(|it| *it += 1.0);
            }
            assert!(expected(&after, &tensor.name) == values, "{name} {}", tensor.name);
        }
    }
}
