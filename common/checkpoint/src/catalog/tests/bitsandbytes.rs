//! Matrices in 4 bits of bitsandbytes: what is read is what bitsandbytes reads, and each way their tensors can be wrong, by the
//! names that the files have.

use serde_json::{Value, json};

use super::super::{CatalogError, Checkpoint};
use super::catalog_error;
use crate::blob::{Blob, BlobSource};
use crate::dtype::Dtype;
use crate::encoding::{Bnb, Encoding, Levels, Part, RowsAt};
use crate::testing::{Made, TinyCheckpoint, golden};

const UP: &str = "model.layers.0.mlp.up_proj";
const STATE: &str = "weight.quant_state.bitsandbytes__nf4";

fn nf4(is_nested: bool) -> Encoding {
    Encoding::Bnb(Bnb::new(Levels::Nf4, 64, is_nested).unwrap())
}

/// The weights of a matrix of a golden checkpoint, read from its file or from a blob.
fn weights(
    encoding: Encoding,
    [rows, columns]: [u64; 2],
    read: impl Fn(&str) -> (Dtype, Vec<u8>),
) -> Vec<f32> {
    let parts = encoding.parts([rows, columns]).unwrap();
    let parts: Vec<_> = parts.iter().map(|spec| read(spec.part.ending())).collect();
    let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
    let mut out = vec![0.0; (rows * columns) as usize];
    encoding.decode_rows(RowsAt::start(columns as usize), &parts, &mut out);
    out
}

#[test]
fn matrices_are_those_that_bitsandbytes_unpacks_to_the_bit() {
    // Of the weights that `dequantize_4bit` gives in f32, bits · 31^(those after it), summed.
    for (name, is_nested, layer, module, shape, expected) in [
        ("llama-nf4", true, 0, "mlp.down_proj", [128, 320], 0xfc59_452d),
        ("llama-nf4", true, 1, "self_attn.k_proj", [64, 128], 0x1050_03d5),
        ("qwen2-nf4-plain", false, 0, "mlp.down_proj", [128, 320], 0xac0d_4edd),
        ("qwen2-nf4-plain", false, 1, "self_attn.k_proj", [64, 128], 0x21a3_9e29),
    ] {
        let checkpoint = golden(name);
        assert!(checkpoint.warnings.is_empty(), "{name}: {:?}", checkpoint.warnings);
        let module = format!("model.layers.{layer}.{module}");
        let tensor = |ending: &str| checkpoint.tensor(&format!("{module}{ending}")).unwrap();
        let encoding = tensor(".weight").encoding.unwrap();
        assert_eq!(encoding, nf4(is_nested), "{name} {module}");
        let found = weights(encoding, shape, |ending| {
            let tensor = tensor(ending);
            (tensor.dtype, checkpoint.map(tensor).unwrap().bytes().to_vec())
        });
        let hash = |hash: u32, weight: &f32| hash.wrapping_mul(31).wrapping_add(weight.to_bits());
        assert_eq!(found.iter().fold(0, hash), expected, "{name} {module}");
        // And so they are for whoever has the blob alone.
        let source = BlobSource::new(&checkpoint, layer);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("blob");
        source.write_to(&mut std::fs::File::create(&path).unwrap()).unwrap();
        let blob = Blob::open(&path, &source.manifest().unwrap()).unwrap();
        let of_blob = weights(encoding, shape, |ending| {
            let tensor = blob.tensor(&format!("{module}{ending}")).unwrap();
            (tensor.dtype(), tensor.bytes().to_vec())
        });
        assert!(of_blob == found, "{name} {module}");
    }
}

#[test]
fn no_more_bytes_are_sent_than_the_file_has() {
    for name in ["llama-nf4", "qwen2-nf4-plain"] {
        let checkpoint = golden(name);
        let bytes: u64 = (0..2).map(|layer| checkpoint.layer_bytes(layer)).sum();
        let ends: u64 = 2 * 384 * 128 * 2 + 128 * 2;
        assert!(bytes + ends <= checkpoint.files[0].bytes, "{name}: {bytes}");
    }
}

/// What the file says of a matrix of that shape.
fn state(shape: [u64; 2], is_nested: bool) -> Value {
    let mut state =
        json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape});
    if is_nested {
        state["nested_blocksize"] = 256.into();
        state["nested_dtype"] = "float32".into();
        state["nested_offset"] = 0.125.into();
    }
    state
}

fn numbers(count: u64, of: impl Fn(u64) -> f32) -> Vec<u8> {
    (0..count).flat_map(|index| of(index).to_le_bytes()).collect()
}

fn levels(of: Levels) -> Vec<u8> {
    of.table().iter().flat_map(|level| level.to_le_bytes()).collect()
}

/// One layer whose matrices are packed, its statistics too or not.
fn tiny(is_nested: bool) -> TinyCheckpoint {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config["hidden_size"] = 64.into();
    tiny.config["intermediate_size"] = 320.into();
    tiny.files.insert("model.safetensors".into(), crate::testing::tensors(&tiny.config));
    tiny.config["quantization_config"] = json!({"quant_method": "bitsandbytes", "load_in_4bit": true,
        "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": is_nested});
    let mut all: Vec<Made> = Vec::new();
    for (name, dtype, shape, bytes) in tiny.file("model.safetensors").drain(..) {
        let &[rows, columns] = &shape[..] else {
            all.push((name, dtype, shape, bytes));
            continue;
        };
        if !name.contains("_proj") {
            all.push((name, dtype, shape, bytes));
            continue;
        }
        let (codes, blocks) = (rows * columns / 2, rows * columns / 64);
        let mut part = |ending: &str, dtype, shape: &[u64], bytes: Vec<u8>| {
            all.push((format!("{name}{ending}"), dtype, shape.to_vec(), bytes));
        };
        let pairs = bytes.iter().cycle().take(codes as usize).copied().collect();
        part("", "U8", &[codes, 1], pairs);
        part(".quant_map", "F32", &[16], levels(Levels::Nf4));
        if is_nested {
            let shared = blocks.div_ceil(256);
            part(".absmax", "U8", &[blocks], (0..blocks).map(|index| index as u8).collect());
            part(".nested_absmax", "F32", &[shared], numbers(shared, |_| 0.5));
            part(".nested_quant_map", "F32", &[256], numbers(256, |it| it as f32 / 256.0));
        } else {
            part(".absmax", "F32", &[blocks], numbers(blocks, |_| 0.5));
        }
        let text = state([rows, columns], is_nested).to_string().into_bytes();
        part(".quant_state.bitsandbytes__nf4", "U8", &[text.len() as u64], text);
    }
    *tiny.file("model.safetensors") = all;
    tiny
}

fn tensors(tiny: &mut TinyCheckpoint) -> &mut Vec<Made> {
    tiny.file("model.safetensors")
}

fn name_of(word: &str) -> String {
    format!("{UP}.{word}")
}

/// Gives a tensor of the matrix another type, shape and content.
fn change(tiny: &mut TinyCheckpoint, word: &str, dtype: &'static str, shape: &[u64], bytes: &[u8]) {
    let name = name_of(word);
    let count = Dtype::parse(dtype).unwrap().tensor_bytes(shape).unwrap() as usize;
    let bytes = bytes.iter().chain(std::iter::repeat(&0)).take(count).copied().collect();
    *tiny.tensor(&name) = (name.clone(), dtype, shape.to_vec(), bytes);
}

/// Gives the matrix another text.
fn say(tiny: &mut TinyCheckpoint, text: &str) {
    change(tiny, STATE, "U8", &[text.len() as u64], text.as_bytes());
}

/// Refuses it with that word and those others.
#[track_caller]
fn refuses(tiny: &TinyCheckpoint, word: &str, others: &[&str]) -> CatalogError {
    let error = catalog_error(tiny);
    let text = error.to_string();
    assert!(text.contains(&name_of(word)), "{text}");
    for other in others {
        assert!(text.contains(other), "{text}: {other}");
    }
    error
}

fn up(checkpoint: &Checkpoint) -> Encoding {
    checkpoint.tensor(&format!("{UP}.weight")).unwrap().encoding.unwrap()
}

#[test]
fn each_matrix_says_itself_how_it_is_stored() {
    for is_nested in [false, true] {
        assert_eq!(up(&tiny(is_nested).open().unwrap()), nf4(is_nested));
    }
    let mut other = tiny(false);
    say(&mut other, &state([320, 64], false).to_string().replace("nf4", "fp4"));
    change(&mut other, "weight.quant_map", "F32", &[16], &levels(Levels::Fp4));
    assert_eq!(up(&other.open().unwrap()).to_string(), "bnb-fp4-64");
    // One that was left as it was.
    let mut plain = tiny(true);
    tensors(&mut plain).retain(|made| !made.0.starts_with(UP));
    tensors(&mut plain).push(crate::testing::made(&name_of("weight"), &[320, 64]));
    assert_eq!(up(&plain.open().unwrap()).to_string(), "BF16");
}

#[test]
fn what_is_added_to_scales_is_what_the_text_says() {
    for (text, offset) in
        [("0.125", 0.125f32), ("-1e-3", -1e-3), ("0.2027740478515625", 0.202_774_05)]
    {
        let mut tiny = tiny(true);
        say(&mut tiny, &state([320, 64], true).to_string().replace("0.125", text));
        let checkpoint = tiny.open().unwrap();
        let tensor = checkpoint.tensor(&format!("{UP}{}", Part::ScaleOffset.ending())).unwrap();
        assert_eq!(checkpoint.map(tensor).unwrap().bytes(), offset.to_le_bytes());
        for (start, end) in [(0, 1), (1, 4), (3, 3), (4, 4)] {
            let mut piece = vec![0; end - start];
            checkpoint.read_at(tensor, start as u64, &mut piece).unwrap();
            assert_eq!(piece, offset.to_le_bytes()[start..end]);
        }
        assert!(checkpoint.read_at(tensor, 3, &mut [0; 2]).is_err());
    }
}

#[test]
fn parts_that_are_missing_have_the_files_names() {
    let words = ["weight", "weight.absmax", "weight.quant_map", STATE];
    let nested = ["weight.nested_absmax", "weight.nested_quant_map"];
    for (is_nested, word) in words
        .map(|word| (false, word))
        .into_iter()
        .chain(words.map(|word| (true, word)))
        .chain(nested.map(|word| (true, word)))
    {
        let mut tiny = tiny(is_nested);
        tensors(&mut tiny).retain(|made| made.0 != name_of(word));
        let error = refuses(&tiny, word, &[]);
        assert!(matches!(error, CatalogError::MissingTensors { .. }), "{error}");
    }
}

#[test]
fn types_and_shapes_that_are_not_the_layouts() {
    // 320 · 64 weights.
    for (is_nested, word, dtype, shape, words) in [
        (true, "weight", "U8", &[320, 32][..], &["[10240, 1]", "[320, 32]"][..]),
        (true, "weight", "U8", &[1, 10240], &["[10240, 1]"]),
        (true, "weight", "U8", &[10239, 1], &["[10240, 1]"]),
        (true, "weight", "BF16", &[10240, 1], &["BF16", "U8"]),
        (true, "weight.absmax", "U8", &[319], &["[320]", "[319]"]),
        (true, "weight.absmax", "F32", &[320], &["F32", "U8"]),
        (false, "weight.absmax", "U8", &[320], &["U8", "F32"]),
        (false, "weight.absmax", "F32", &[320, 1], &["[320]"]),
        (true, "weight.nested_absmax", "F32", &[1], &["[2]", "[1]"]),
        (true, "weight.nested_absmax", "F16", &[2], &["F16", "F32"]),
        (true, "weight.nested_quant_map", "F32", &[255], &["[256]", "[255]"]),
        (true, "weight.nested_quant_map", "U8", &[256], &["U8", "F32"]),
        (true, "weight.quant_map", "F32", &[15], &["[16]", "[15]"]),
        (true, "weight.quant_map", "F16", &[16], &["F16", "F32"]),
        (true, STATE, "I8", &[20], &["I8", "U8"]),
        (true, STATE, "U8", &[4097], &["4096"]),
    ] {
        let mut tiny = tiny(is_nested);
        change(&mut tiny, word, dtype, shape, &[]);
        refuses(&tiny, word, words);
    }
}

#[test]
fn levels_that_bitsandbytes_has_not() {
    let mut tiny = tiny(true);
    let mut other = levels(Levels::Nf4);
    other[4 * 9] ^= 1;
    change(&mut tiny, "weight.quant_map", "F32", &[16], &other);
    let error = refuses(&tiny, "weight.quant_map", &["code 9", "bnb-nf4-64-nested"]);
    assert!(matches!(error, CatalogError::PackedLevels { code: 9, .. }), "{error}");
    change(&mut tiny, "weight.quant_map", "F32", &[16], &numbers(16, |_| f32::NAN));
    refuses(&tiny, "weight.quant_map", &["code 0", "NaN"]);
}

#[test]
fn texts_that_say_something_else() {
    let control = "{\"\\u001b]0;owned\\u0007\": 1}";
    for text in ["", "{", "[]", "null", "{}", r#"{"quant_type": 4}"#, control] {
        let mut tiny = tiny(true);
        say(&mut tiny, text);
        let error = refuses(&tiny, STATE, &[]);
        assert!(matches!(error, CatalogError::PackedText { .. }), "{error}");
        assert!(!error.to_string().chars().any(char::is_control), "{error}");
    }
    let mut zeros = tiny(true);
    say(&mut zeros, "\u{0}\u{0}");
    let error = refuses(&zeros, STATE, &["all of the file"]);
    assert!(matches!(error, CatalogError::PackedTextIsZeros { .. }), "{error}");
    for (field, value, words) in [
        ("quant_type", json!("af4"), &["quant_type", "af4", "nf4"][..]),
        ("blocksize", json!(32), &["blocksize 32", "64 or 128"]),
        ("blocksize", json!(0), &["blocksize 0"]),
        ("blocksize", json!(-64), &["-64"]),
        ("shape", json!([20480]), &["shape [20480]", "two dimensions"]),
        ("shape", json!([]), &["shape []"]),
        ("shape", json!(null), &["null"]),
        ("nested_blocksize", json!(128), &["nested_blocksize", "128", "256"]),
        ("nested_blocksize", json!(null), &["nested_blocksize", "256"]),
        ("nested_dtype", json!("bfloat16"), &["nested_dtype", "bfloat16", "float32"]),
        ("nested_offset", json!(null), &["nested_offset"]),
        ("nested_offset", json!(1e39), &["nested_offset", "1e39"]),
        ("nested_offset", json!("0.1"), &["0.1"]),
        ("rotated", json!(true), &["rotated"]),
    ] {
        let mut tiny = tiny(true);
        let mut other = state([320, 64], true);
        other[field] = value;
        say(&mut tiny, &other.to_string());
        refuses(&tiny, STATE, words);
    }
    // Python writes what JSON has no word for.
    let mut tiny = tiny(true);
    say(&mut tiny, &state([320, 64], true).to_string().replace("0.125", "NaN"));
    refuses(&tiny, STATE, &[]);
}

#[test]
fn shapes_of_texts_that_no_tensor_has() {
    for (shape, refused, words) in [
        ([64, 320], "weight", &["[320, 32]", "[64, 160]"][..]), // The other way round.
        ([320, 128], "weight", &["[20480, 1]", "[10240, 1]"]),
        ([0, 64], "weight", &["[0, 1]"]),
        ([640, 32], "weight", &["32 weights", "bnb-nf4-64-nested"]), // Blocks of two rows.
        ([u64::MAX, 64], "weight", &["[18446744073709551615, 1]"]),
        ([2, u64::MAX - 63], "weight", &["[18446744073709551552, 1]"]),
    ] {
        let mut tiny = tiny(true);
        say(&mut tiny, &state(shape, true).to_string());
        refuses(&tiny, refused, words);
    }
}

#[test]
fn statistics_of_statistics_beside_plain_ones_are_missing_the_rest() {
    let mut tiny = tiny(false);
    tensors(&mut tiny).push((name_of("weight.nested_absmax"), "F32", vec![2], vec![0; 8]));
    refuses(&tiny, STATE, &["nested_blocksize", "256"]);
}
