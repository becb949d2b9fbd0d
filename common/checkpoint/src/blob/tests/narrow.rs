//! Layers whose numbers have a byte or 4 bits, as blobs.

use super::*;

#[test]
fn layers_of_packed_numbers_survive_blob_and_manifest_byte_for_byte() {
    for name in [
        "qwen2-fp8-block",
        "qwen3-moe-fp8",
        "mistral3-fp8",
        "llama-nvfp4",
        "llama-modelopt",
        "gpt-oss-mxfp4",
        "gpt-oss-mlx",
        "llama-nf4",
        "qwen2-nf4-plain",
    ] {
        let checkpoint = golden(name);
        let source = BlobSource::new(&checkpoint, 1);
        let manifest = source.manifest().unwrap();
        let read = Manifest::from_json(&manifest.to_json()).unwrap();
        assert_eq!((&read, read.name()), (&manifest, manifest.name()), "{name}");
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("blob");
        let whole = bytes_of(&source);
        std::fs::write(&path, &whole).unwrap();
        let blob = Blob::open(&path, &read).unwrap();
        blob.verify(&mut |_| {}).unwrap();
        let tensors = checkpoint.layer_tensors(1);
        assert_eq!(blob.tensors().count(), tensors.len(), "{name}");
        for tensor in tensors {
            let (found, expected) =
                (blob.tensor(&tensor.name).unwrap(), checkpoint.map(tensor).unwrap());
            assert!(found.bytes() == expected.bytes(), "{name} {}", tensor.name);
            assert_eq!(found.encoding(), tensor.encoding, "{name} {}", tensor.name);
        }
        for seed in 0..100usize {
            let start = seed * 7919 * 31 % whole.len();
            let length = (seed * seed + seed % 3).min(whole.len() - start);
            let mut piece = vec![0; length];
            source.read(start as u64, &mut piece).unwrap();
            assert!(piece == whole[start..start + length], "{name} {start} + {length}");
        }
    }
}
