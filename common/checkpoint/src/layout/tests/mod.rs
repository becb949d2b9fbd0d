//! Layouts of whole numbers: what is read is what was packed, and each way to be wrong has a name.

mod made;
mod refused;

use serde_json::{Value, json};

use self::made::{Made, Way, checkpoint, packed_bytes};
use crate::blob::{Blob, BlobSource};
use crate::catalog::Checkpoint;
use crate::encoding::integer::{Integer, Order, Zero};
use crate::encoding::{Encoding, Part, RowsAt};
use crate::testing::TinyCheckpoint;

const NEIGHBOURS: Order = Order::Neighbours;

pub(super) fn gptq(bits: u64, group: i64) -> Value {
    json!({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": false, "sym": false})
}

pub(super) fn awq(group: i64) -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"})
}

pub(super) fn compressed(bits: u64, group: Option<u64>, symmetric: bool) -> Value {
    let strategy = if group.is_some() { "group" } else { "channel" };
    let weights = json!({"num_bits": bits, "type": "int", "symmetric": symmetric,
        "strategy": strategy, "group_size": group});
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

pub(super) fn with(mut config: Value, field: &str, value: impl Into<Value>) -> Value {
    config[field] = value.into();
    config
}

/// The parts of a matrix, read by `read`.
fn decoded(
    encoding: Encoding,
    made: &Made,
    read: impl Fn(Part) -> Option<(crate::Dtype, Vec<u8>)>,
) -> Vec<f32> {
    let parts = encoding.parts([made.rows as u64, made.columns as u64]).unwrap();
    let parts: Vec<_> = parts.iter().map(|spec| read(spec.part).unwrap()).collect();
    let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
    let mut out = vec![0.0; made.rows * made.columns];
    encoding.decode_rows(RowsAt::start(made.columns), &parts, &mut out);
    out
}

/// Opens the checkpoint and compares every matrix with what was packed: read from the checkpoint, and from a blob of its layer.
#[track_caller]
fn check(tiny: &TinyCheckpoint, matrices: &[(String, Made)], expected: Integer) -> Checkpoint {
    let checkpoint = tiny.open().unwrap();
    assert!(checkpoint.warnings.is_empty(), "{:?}", checkpoint.warnings);
    let source = BlobSource::new(&checkpoint, 0);
    let manifest = source.manifest().unwrap();
    let path = tiny.directory.path().join("blob");
    source.write_to(&mut std::fs::File::create(&path).unwrap()).unwrap();
    let blob = Blob::open(&path, &manifest).unwrap();
    blob.verify(&mut |_| {}).unwrap();
    for (module, made) in matrices {
        let name = |part: Part| format!("{module}{}", part.ending());
        let weight = checkpoint.tensor(&name(Part::Weight)).unwrap();
        assert_eq!(weight.encoding, Some(Encoding::Integer(expected)), "{module}");
        assert_eq!(blob.tensor(&weight.name).unwrap().encoding(), weight.encoding);
        let encoding = Encoding::Integer(expected);
        let from_file = decoded(encoding, made, |part| {
            let tensor = checkpoint.tensor(&name(part))?;
            Some((tensor.dtype, checkpoint.map(tensor).unwrap().bytes().to_vec()))
        });
        assert!(from_file == made.weights(), "{module}");
        let from_blob = decoded(encoding, made, |part| {
            let tensor = blob.tensor(&name(part))?;
            Some((tensor.dtype(), tensor.bytes().to_vec()))
        });
        assert!(from_blob == from_file, "{module}");
    }
    checkpoint
}

/// A checkpoint whose matrices were packed that way, checked.
#[track_caller]
fn checked(config: Value, way: Way, made: impl Fn(Made) -> Made, expected: Option<Integer>) {
    let (tiny, matrices) = checkpoint(config, way, &made);
    check(&tiny, &matrices, expected.expect("a format that there is"));
}

#[test]
fn gptq_of_both_versions_widths_and_all_groups() {
    for (bits, group, size) in [
        (4, 64, Some(64)),
        (4, 32, Some(32)),
        (4, -1, None),
        (8, 32, Some(32)),
        (8, 128, Some(128)), // More than a row of most has.
        (8, -1, None),
    ] {
        let made = |made: Made| made.packed(bits as u32, size).with_zeros_from(1);
        let expected = Integer::new(bits, size, Zero::OneMore, NEIGHBOURS);
        checked(gptq(bits, group), Way::Gptq { less: 1 }, made, expected);
        let made = |made: Made| made.packed(bits as u32, size).with_zeros_from(0);
        let config = with(gptq(bits, group), "checkpoint_format", "gptq_v2");
        let expected = Integer::new(bits, size, Zero::Stored, NEIGHBOURS);
        checked(config, Way::Gptq { less: 0 }, made, expected);
    }
}

#[test]
fn the_largest_zero_of_gptq_is_one_more_than_a_code() {
    let made = |made: Made| made.packed(4, Some(32)).with_zero(16);
    let expected = Integer::new(4, Some(32), Zero::OneMore, NEIGHBOURS);
    checked(gptq(4, 32), Way::Gptq { less: 1 }, made, expected);
}

#[test]
fn symmetric_gptq_has_no_zeros_whichever_version_its_zeros_are_of() {
    let middle = Integer::new(4, Some(32), Zero::Middle, NEIGHBOURS);
    for less in [0, 1] {
        for format in ["gptq", "gptq_v2"] {
            let config = with(with(gptq(4, 32), "sym", true), "checkpoint_format", format);
            let made = |made: Made| made.packed(4, Some(32)).with_zero(8);
            checked(config, Way::Gptq { less }, made, middle);
        }
        let config = with(gptq(8, -1), "sym", true);
        let made = |made: Made| made.packed(8, None).with_zero(128);
        let expected = Integer::new(8, None, Zero::Middle, NEIGHBOURS);
        checked(config, Way::Gptq { less }, made, expected);
    }
    // Said to be symmetric, and is not.
    let made = |made: Made| made.packed(4, Some(32)).with_zeros_from(1);
    let expected = Integer::new(4, Some(32), Zero::OneMore, NEIGHBOURS);
    checked(with(gptq(4, 32), "sym", true), Way::Gptq { less: 1 }, made, expected);
}

#[test]
fn gptq_whose_columns_chose_their_groups() {
    for bits in [4, 8] {
        let config = with(gptq(bits, 32), "desc_act", true);
        let made = |made: Made| made.packed(bits as u32, Some(32)).with_zeros_from(1).shuffled();
        let expected = Integer::new(bits, Some(32), Zero::OneMore, Order::Chosen);
        checked(config.clone(), Way::Gptq { less: 1 }, made, expected);
        // They may have chosen what neighbours have.
        let made = |made: Made| made.packed(bits as u32, Some(32)).with_zeros_from(1);
        let expected = Integer::new(bits, Some(32), Zero::OneMore, NEIGHBOURS);
        checked(config, Way::Gptq { less: 1 }, made, expected);
    }
    let config = with(with(gptq(4, 64), "desc_act", true), "sym", true);
    let made = |made: Made| made.packed(4, Some(32)).with_zero(8).shuffled();
    let config = with(config, "group_size", 32);
    let expected = Integer::new(4, Some(32), Zero::Middle, Order::Chosen);
    checked(config, Way::Gptq { less: 1 }, made, expected);
    // One group is nobody's choice.
    let made = |made: Made| made.packed(4, None).with_zeros_from(1);
    let expected = Integer::new(4, None, Zero::OneMore, NEIGHBOURS);
    checked(with(gptq(4, -1), "desc_act", true), Way::Gptq { less: 1 }, made, expected);
}

#[test]
fn awq_in_its_order() {
    for (group, size) in [(32, Some(32)), (64, Some(64)), (-1, None)] {
        let made = |made: Made| made.packed(4, size).with_zeros_from(0);
        checked(awq(group), Way::Awq, made, Integer::new(4, size, Zero::Stored, NEIGHBOURS));
    }
    let bare = json!({"quant_method": "awq", "bits": 4, "group_size": 32});
    let made = |made: Made| made.packed(4, Some(32)).with_zeros_from(0);
    checked(bare, Way::Awq, made, Integer::new(4, Some(32), Zero::Stored, NEIGHBOURS));
}

#[test]
fn compressed_tensors_with_and_without_zeros_and_groups() {
    for bits in [4, 8] {
        for size in [Some(32), Some(128), None] {
            let middle = 1 << (bits - 1);
            let made = |made: Made| made.packed(bits as u32, size).with_zero(middle);
            let expected = Integer::new(bits, size, Zero::Middle, NEIGHBOURS);
            checked(compressed(bits, size, true), Way::Compressed { zeros: false }, made, expected);
            let made = |made: Made| made.packed(bits as u32, size).with_zeros_from(0);
            let expected = Integer::new(bits, size, Zero::Stored, NEIGHBOURS);
            checked(compressed(bits, size, false), Way::Compressed { zeros: true }, made, expected);
        }
    }
    let made = |made: Made| made.packed(4, Some(32)).with_zeros_from(0).shuffled();
    let expected = Integer::new(4, Some(32), Zero::Stored, Order::Chosen);
    checked(compressed(4, Some(32), false), Way::Compressed { zeros: true }, made, expected);
}

#[test]
fn columns_that_were_given_no_group_follow_each_other() {
    let made = |made: Made| made.packed(4, Some(32)).with_zero(8);
    let (mut tiny, matrices) =
        checkpoint(compressed(4, Some(32), true), Way::Compressed { zeros: false }, &made);
    let file = tiny.file("model.safetensors");
    for (module, made) in &matrices {
        let none = vec![0xff; made.columns * 4];
        let name = format!("{module}.weight_g_idx");
        file.push((name, "I32", vec![made.columns as u64], none));
    }
    let expected = Integer::new(4, Some(32), Zero::Middle, NEIGHBOURS).unwrap();
    check(&tiny, &matrices, expected);
}

#[test]
fn no_more_bytes_are_sent_than_the_file_has() {
    for (config, way, least) in [
        (gptq(4, 32), Way::Gptq { less: 1 }, 1),
        (awq(32), Way::Awq, 0),
        (compressed(4, Some(32), false), Way::Compressed { zeros: true }, 0),
    ] {
        let made = |made: Made| made.packed(4, Some(32)).with_zeros_from(least);
        let (tiny, matrices) = checkpoint(config, way, &made);
        let checkpoint = tiny.open().unwrap();
        let sent: u64 = matrices
            .iter()
            .flat_map(|(module, _)| Part::ALL.map(|part| format!("{module}{}", part.ending())))
            .filter_map(|name| checkpoint.tensor(&name))
            .map(|tensor| tensor.bytes)
            .sum();
        // A row with an odd number of zeros ends in half a byte of nothing.
        let odd = matrices.iter().filter(|(_, made)| made.count() % 2 == 1);
        let halves: usize = odd.map(|(_, made)| made.rows / 2).sum();
        let most = packed_bytes(&tiny) + halves as u64;
        assert!(sent <= most, "{sent} bytes are sent, {way:?}");
    }
}

#[test]
fn any_piece_of_a_blob_is_what_the_whole_has_there() {
    for (config, way, least) in [
        (gptq(8, 32), Way::Gptq { less: 1 }, 1),
        (awq(32), Way::Awq, 0),
        (compressed(4, Some(32), false), Way::Compressed { zeros: true }, 0),
    ] {
        let bits = if config["bits"] == 8 { 8 } else { 4 };
        let made = |made: Made| made.packed(bits, Some(32)).with_zeros_from(least);
        let (tiny, _) = checkpoint(config, way, &made);
        let checkpoint = tiny.open().unwrap();
        let source = BlobSource::new(&checkpoint, 0);
        let mut whole = vec![0; source.file_bytes() as usize];
        source.read(0, &mut whole).unwrap();
        let mut start = 0;
        for length in [1, 7, 64, 333, 1021].into_iter().cycle() {
            let end = (start + length).min(whole.len());
            let mut piece = vec![0; end - start];
            source.read(start as u64, &mut piece).unwrap();
            assert!(piece == whole[start..end], "{way:?} {start}..{end}");
            start = end;
            if start == whole.len() {
                break;
            }
        }
    }
}
