//! What comes before the data of an APR file.

use std::path::Path;

use cake_checkpoint::ModelSpec;
use cake_checkpoint::container::apr::{FOOTER_BYTES, HEADER_BYTES, Head, header_checksum};

/// The golden files, and how long they are.
const GOLDEN: [(&str, u64); 2] = [("llama-q8-q4.apr", 208_388), ("llama3-q4k.apr", 826_116)];

/// Reads the bytes as files of several lengths, with the checksum that they say and with the right one, which hides nothing.
pub(super) fn run(bytes: &[u8]) {
    let mut summed = bytes.to_vec();
    if let Some(header) = summed.first_chunk::<{ HEADER_BYTES as usize }>() {
        let sum = header_checksum(header);
        summed[40..44].copy_from_slice(&sum.to_le_bytes());
    }
    for bytes in [bytes, &summed] {
        for file_bytes in GOLDEN.map(|(_, bytes)| bytes).into_iter().chain([bytes.len() as u64]) {
            let Ok(head) = Head::parse(bytes, file_bytes) else { continue };
            let end = file_bytes - if head.has_footer { FOOTER_BYTES } else { 0 };
            assert!(head.tensors.iter().all(|tensor| tensor.start + tensor.bytes <= end));
            if let Ok(config) = head.config() {
                drop(ModelSpec::parse(&config));
            }
            if let Ok(stored) = head.into_stored() {
                assert!(stored.iter().all(|tensor| tensor.offset + tensor.bytes <= end));
            }
        }
    }
}

/// The golden files up to their data.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let head = |(name, _)| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-apr").join(name);
        let mut bytes = std::fs::read(&path).expect("golden data is there");
        let (head, _, _) = Head::read(&path).expect("a golden file");
        bytes.truncate(head.header.data_start as usize);
        bytes
    };
    GOLDEN.map(head).into()
}
