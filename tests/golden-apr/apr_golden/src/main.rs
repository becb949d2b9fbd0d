//! Writes and reads APR files by the crate `apr-format`, which defines them.
//!
//! `apr-golden write MANIFEST.json OUT.apr`: in memory, or as a stream where the manifest says so.
//! `apr-golden read FILE.apr`: what the crate sees, as JSON.

use apr_format::v2::{
    AprV2Metadata, AprV2Reader, AprV2StreamingWriter, AprV2Writer, TensorDType, required_file_len,
};
use serde_json::{Value, json};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args[1].as_str() {
        "read" => read(&args[2]),
        "write" => write(&args[2], &args[3]),
        other => panic!("read or write, not {other}"),
    }
}

fn read(path: &str) {
    let bytes = std::fs::read(path).unwrap();
    let reader = match AprV2Reader::from_bytes(&bytes) {
        Ok(reader) => reader,
        Err(error) => {
            println!("{}", json!({"error": format!("{error:?}")}));
            std::process::exit(1)
        }
    };
    let header = reader.header();
    let tensor = |entry: &apr_format::v2::TensorIndexEntry| {
        json!({
            "name": entry.name, "dtype": entry.dtype.name(), "id": entry.dtype as u8,
            "shape": entry.shape, "offset": entry.offset, "size": entry.size,
            "readable": reader.get_tensor_data(&entry.name).is_some(),
        })
    };
    let tensors: Vec<Value> = reader.tensor_index().iter().map(tensor).collect();
    let seen = json!({
        "version": [header.version.0, header.version.1], "flags": header.flags.bits(),
        "metadata_offset": header.metadata_offset, "metadata_size": header.metadata_size,
        "tensor_index_offset": header.tensor_index_offset, "data_offset": header.data_offset,
        "header_crc": header.checksum, "aligned": reader.verify_alignment(),
        "required_file_len": required_file_len(&bytes).unwrap(), "file_len": bytes.len(),
        "tensors": tensors,
    });
    println!("{seen}");
}

fn write(manifest: &str, path: &str) {
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let data = std::fs::read(manifest["data"].as_str().unwrap()).unwrap();
    let metadata = AprV2Metadata::from_json(manifest["metadata"].to_string().as_bytes()).unwrap();
    let streaming = manifest["streaming"].as_bool().unwrap_or(false);
    let mut whole = AprV2Writer::new(metadata.clone());
    let mut stream = AprV2StreamingWriter::new(metadata).unwrap();
    for tensor in manifest["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap().to_string();
        let shape = tensor["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|size| size.as_u64().unwrap() as usize).collect();
        let number = |key: &str| tensor[key].as_u64().unwrap() as usize;
        let raw = data[number("at")..number("at") + number("bytes")].to_vec();
        let floats = || -> Vec<f32> {
            raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        match (tensor["kind"].as_str().unwrap(), streaming) {
            ("q8", false) => whole.add_q8_tensor(name, shape, &floats()),
            ("q4", false) => whole.add_q4_tensor(name, shape, &floats()),
            ("f16", false) => whole.add_f16_tensor(name, shape, &floats()),
            ("q8", true) => stream.add_q8_tensor(name, shape, &floats()).unwrap(),
            ("q4", true) => stream.add_q4_tensor(name, shape, &floats()).unwrap(),
            ("f16", true) => stream.add_f16_tensor(name, shape, &floats()).unwrap(),
            ("bf16", _) => {
                let halves = floats().into_iter().map(half::bf16::from_f32);
                let bytes: Vec<u8> = halves.flat_map(|half| half.to_le_bytes()).collect();
                if streaming {
                    stream.add_tensor(name, TensorDType::BF16, shape, &bytes).unwrap();
                } else {
                    whole.add_tensor(name, TensorDType::BF16, shape, bytes);
                }
            }
            (kind, false) => whole.add_tensor(name, dtype(kind), shape, raw),
            (kind, true) => stream.add_tensor(name, dtype(kind), shape, &raw).unwrap(),
        }
    }
    if streaming {
        stream.finalize(std::path::Path::new(path)).unwrap();
    } else {
        whole.write_into(path).unwrap();
    }
}

fn dtype(kind: &str) -> TensorDType {
    match kind {
        "f32" => TensorDType::F32,
        "q4_k" => TensorDType::Q4K,
        "q6_k" => TensorDType::Q6K,
        other => panic!("no tensors of kind {other}"),
    }
}
