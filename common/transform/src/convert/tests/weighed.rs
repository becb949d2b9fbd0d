//! Errors that count as a checkpoint was told to have them.

use std::sync::Arc;

use cake_checkpoint::{BlobSource, Checkpoint, ColumnSquares, Importance};

use super::*;

/// Has errors of some columns count more than those of others, in all matrices.
fn weighed(checkpoint: &Checkpoint, step: u64) {
    let layers = 0..checkpoint.config.layers.len();
    let tensors = layers.flat_map(|layer| checkpoint.layer_tensors(layer));
    let met: Vec<_> = tensors
        .filter(|tensor| tensor.shape.len() == 2)
        .map(|matrix| {
            let squares = (0..matrix.shape[1]).map(|column| (column * step % 1013) as f64);
            (&*matrix.name, ColumnSquares { rows: 1 << 20, squares: squares.collect() })
        })
        .collect();
    let mut importance = Importance::default();
    importance.add(met.iter().map(|(name, met)| (*name, met)), checkpoint.config.hidden_size);
    checkpoint.weigh(Arc::new(importance));
}

#[test]
fn what_is_written_is_what_workers_get_also_of_experts_in_one_tensor() {
    let home = tempfile::tempdir().unwrap();
    for format in [HubFormat::Safetensors, HubFormat::Mlx] {
        let made = |step: Option<u64>| {
            let source = golden("qwen3-moe");
            let checkpoint = source.checkpoint().unwrap();
            step.into_iter().for_each(|step| weighed(&checkpoint, step));
            let path = home.path().join(format!("{format:?}-{step:?}"));
            let target = Target::Directory(path.clone());
            let encode = Encode::Affine(Scheme::Q4);
            let job = to_hub(source, &checkpoint, format, encode, target, u64::MAX).unwrap();
            (job, checkpoint, path)
        };
        let all = [None, Some(7919), Some(31)].map(made);
        let identity = |at: usize| all[at].0.identity().unwrap();
        assert!(identity(0) != identity(1) && identity(1) != identity(2), "other bytes");
        let mut blobs = Vec::new();
        for (job, before, path) in &all {
            job.check_target(false).unwrap();
            job.run(OPTIONS, &Quiet).unwrap();
            assert!(matches!(job.check_target(false), Err(Error::Exists { .. })));
            let found = Source::open(path.to_str().unwrap()).unwrap().checkpoint().unwrap();
            let bytes = |source: BlobSource<'_>| {
                let mut bytes = Vec::new();
                source.write_to(&mut bytes).unwrap();
                bytes
            };
            for layer in 0..before.config.layers.len() {
                let expected = bytes(BlobSource::encoded(before, layer, Scheme::Q4));
                assert!(bytes(BlobSource::new(&found, layer)) == expected, "{format:?} {layer}");
            }
            blobs.push(bytes(BlobSource::new(&found, 0)));
        }
        assert!(blobs[0] != blobs[1] && blobs[1] != blobs[2]);
    }
}
