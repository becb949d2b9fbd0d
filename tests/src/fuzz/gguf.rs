//! What comes before the data of a GGUF file.

use std::path::Path;

use cake_checkpoint::ModelSpec;
use cake_checkpoint::container::gguf::Head;

/// The golden files: with scores and with merges, with experts, with layers that do not attend, with latents, and one of several
/// parts.
const GOLDEN: [&str; 6] = [
    "llama-spm-q8_0/model.gguf",
    "qwen3moe-q4_k_m/model.gguf",
    "llama3-q4_k_m/model.gguf",
    "lfm2moe-q8_0/model.gguf",
    "deepseek2-q4/model.gguf",
    "qwen3-split-q8_0/model-00002-of-00003.gguf",
];
/// A file longer than what is there of it, as most are when their beginning is read.
const FILE_BYTES: u64 = 1 << 40;

/// Reads the bytes as the whole of a file, and as the beginning of a long one.
pub(super) fn run(bytes: &[u8]) {
    for file_bytes in [bytes.len() as u64, FILE_BYTES] {
        let Ok(head) = Head::parse(bytes, file_bytes) else { continue };
        let mut end = head.data_start;
        for tensor in &head.tensors {
            assert!(tensor.start >= end && tensor.bytes > 0);
            end = tensor.start + tensor.bytes;
        }
        assert!(head.tensors.is_empty() || end <= file_bytes);
        drop(head.texts());
        if let Ok(config) = head.config() {
            drop(ModelSpec::parse(&config));
        }
    }
}

/// The golden files up to their data.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let head = |name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf").join(name);
        let mut bytes = std::fs::read(&path).expect("golden data is there");
        let (head, _, _) = Head::read(&path).expect("a golden file");
        bytes.truncate(head.data_start as usize);
        bytes
    };
    GOLDEN.map(head).into()
}
