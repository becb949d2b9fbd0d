//! Writes and reads APR files by the crate `apr-format`, which defines them.
//!
//! `apr-golden write MANIFEST.json OUT.apr`: in memory, or as a stream where the manifest says so.
//! `apr-golden read FILE.apr`: what the crate sees, as JSON.
//! `apr-golden compare FILE.apr MODEL.safetensors`: whether it sees the tensors of a model; codes must be those that the
//! crate itself makes of the model's numbers, which are F32 then.

use apr_format::v2::{
    AprV2Metadata, AprV2Reader, AprV2StreamingWriter, AprV2Writer, TensorDType, required_file_len,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args[1].as_str() {
        "read" => read(&args[2]),
        "write" => write(&args[2], &args[3]),
        "compare" => compare(&args[2], &args[3]),
        other => panic!("read, write or compare, not {other}"),
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

fn compare(path: &str, model: &str) {
    let (bytes, model) = (std::fs::read(path).unwrap(), std::fs::read(model).unwrap());
    let reader = AprV2Reader::from_bytes(&bytes).unwrap();
    let model = SafeTensors::deserialize(&model).unwrap();
    assert!(reader.verify_alignment(), "{path}: a tensor is not at a multiple of 64");
    let mut names: Vec<String> = model.names().into_iter().map(|name| name.to_string()).collect();
    names.sort();
    assert_eq!(reader.tensor_names(), names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut coded = 0;
    for name in &names {
        let (entry, view) = (reader.get_tensor(name).unwrap(), model.tensor(name).unwrap());
        let shape: Vec<usize> = entry.shape.iter().map(|&size| size as usize).collect();
        assert_eq!(shape, view.shape(), "{name}");
        let numbers = || -> Vec<f32> {
            assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
            let chunks = view.data().chunks_exact(4);
            chunks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let mut own = AprV2Writer::new(AprV2Metadata::default());
        match entry.dtype {
            TensorDType::AprQ8 => own.add_q8_tensor(name.clone(), shape, &numbers()),
            TensorDType::AprQ4 => own.add_q4_tensor(name.clone(), shape, &numbers()),
            _ => {
                assert_eq!(reader.get_tensor_data(name).unwrap(), view.data(), "{name}");
                continue;
            }
        }
        coded += 1;
        let own = own.write().unwrap();
        let own = AprV2Reader::from_bytes(&own).unwrap();
        assert!(reader.get_tensor_data(name) == own.get_tensor_data(name), "{name}: other codes");
    }
    println!(
        "{path}: {} tensors are the model's, {coded} of them in the crate's own codes",
        names.len()
    );
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
