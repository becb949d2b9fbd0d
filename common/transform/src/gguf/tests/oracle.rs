//! The simplest way to run a job, and the simplest way to read a GGUF file.

use std::collections::BTreeMap;

use cake_checkpoint::{Dtype, Encoding, FloatType, GgmlType, RowsAt};

use crate::gguf::form::GgufType;
use crate::job::Job;
use crate::piece::{Piece, Place, Rows};

/// Runs a job with one output, all of it in memory.
pub(super) fn run(job: &Job) -> Vec<u8> {
    let mut out = vec![0; job.outputs[0].bytes as usize];
    let mut put = |place: &Place, bytes: &[u8]| {
        out[place.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    let read = |from: &crate::piece::Stretch| {
        let mut bytes = vec![0; from.bytes as usize];
        job.source.files[from.file].read_at(from.offset, &mut bytes).unwrap();
        bytes
    };
    for piece in &job.pieces {
        match piece {
            Piece::Known { bytes, place } => put(place, bytes),
            Piece::Copy { from, place } => put(place, &read(from)),
            Piece::Rows(rows) => {
                let parts: Vec<_> = rows.parts.iter().map(|(it, at)| (*it, read(at))).collect();
                put(&rows.places[0], &written(rows, &parts));
            }
            Piece::Checksum { .. } => panic!("GGUF has no checksum"),
        }
    }
    out
}

fn written(rows: &Rows, parts: &[(cake_checkpoint::Dtype, Vec<u8>)]) -> Vec<u8> {
    let [count, columns] = rows.shape.map(|size| size as usize);
    let mut values = vec![0.0; count * columns];
    let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[..])).collect();
    rows.encoding.decode_rows(RowsAt::start(columns), &parts, &mut values);
    let block = rows.order.block();
    let ordered: Vec<f32> = (0..count as u64)
        .map(|row| row / block * block + rows.order.source(row % block))
        .flat_map(|row| &values[row as usize * columns..][..columns])
        .map(|value| value + rows.add)
        .collect();
    let [row_bytes] = rows.form.row_bytes(rows.shape[1])[..] else { panic!("one part") };
    let mut out = vec![0; row_bytes as usize * count];
    rows.form.write(&ordered, columns, 0.0, &mut [&mut out]).unwrap();
    out
}

/// Checks that pieces lie side by side in the output, with gaps that alignment needs only, and that they are read in
/// the order of the files.
pub(super) fn check_tiles(job: &Job) {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let mut last = (0, 0);
    for piece in &job.pieces {
        let (place, bytes, from) = match piece {
            Piece::Known { bytes, place } => (*place, bytes.len() as u64, None),
            Piece::Copy { from, place } => (*place, from.bytes, Some(*from)),
            Piece::Rows(rows) => {
                let bytes = rows.form.row_bytes(rows.shape[1])[0] * rows.shape[0];
                (rows.places[0], bytes, Some(rows.parts[0].1))
            }
            Piece::Checksum { .. } => panic!("GGUF has no checksum"),
        };
        assert_eq!(place.output, 0);
        spans.push((place.offset, place.offset + bytes));
        if let Some(from) = from {
            assert!((from.file, from.offset) >= last, "{piece:?}");
            last = (from.file, from.offset);
        }
    }
    spans.sort_unstable();
    let mut end = 0;
    for (start, next) in spans {
        assert!(start >= end && start - end < 32, "from {end} to {start}");
        end = next;
    }
    assert_eq!(end, job.outputs[0].bytes);
}

/// Numbers of a group of an affine encoding, by its name.
pub(super) fn group(encoding: Encoding) -> u64 {
    encoding.to_string().rsplit('-').next().unwrap().parse().unwrap()
}

/// What a key says, whatever the width of a number is.
#[derive(PartialEq, Debug)]
pub(super) enum Value {
    Whole(i64),
    Number(f64),
    Text(String),
    List(Vec<Value>),
}

/// A GGUF file that was read.
pub(super) struct File {
    pub(super) keys: BTreeMap<String, Value>,
    /// Type, and how many numbers.
    pub(super) tensors: BTreeMap<String, (GgufType, usize)>,
    places: BTreeMap<String, (usize, Vec<u64>)>,
    bytes: Vec<u8>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(count);
        self.0 = rest;
        first
    }

    fn whole(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().rev().fold(0, |whole, byte| whole << 8 | u64::from(*byte))
    }

    fn text(&mut self) -> String {
        let count = self.whole(8) as usize;
        String::from_utf8(self.take(count).into()).unwrap()
    }

    fn value(&mut self, kind: u64) -> Value {
        match kind {
            4 => Value::Whole(self.whole(4) as i64),
            5 => Value::Whole(i64::from(self.whole(4) as i32)),
            6 => Value::Number(f64::from(f32::from_bits(self.whole(4) as u32))),
            7 => Value::Whole(self.whole(1) as i64),
            8 => Value::Text(self.text()),
            9 => {
                let (kind, count) = (self.whole(4), self.whole(8));
                Value::List((0..count).map(|_| self.value(kind)).collect())
            }
            other => panic!("type {other}"),
        }
    }
}

impl File {
    pub(super) fn parse(bytes: Vec<u8>) -> File {
        let mut reader = Reader(&bytes);
        assert_eq!((reader.take(4), reader.whole(4)), (&b"GGUF"[..], 3));
        let (tensors, keys) = (reader.whole(8), reader.whole(8));
        let key = |reader: &mut Reader<'_>| {
            let (key, kind) = (reader.text(), reader.whole(4));
            (key, reader.value(kind))
        };
        let keys: BTreeMap<_, _> = (0..keys).map(|_| key(&mut reader)).collect();
        let (mut infos, mut places) = (BTreeMap::new(), BTreeMap::new());
        let mut next = 0;
        for _ in 0..tensors {
            let (name, count) = (reader.text(), reader.whole(4));
            let shape: Vec<u64> = (0..count).map(|_| reader.whole(8)).collect();
            let (id, offset) = (reader.whole(4), reader.whole(8));
            let blocks = GgmlType::ALL.map(GgufType::Blocks).into_iter();
            let mut kinds = blocks.chain(GgufType::ALL);
            let kind = kinds.find(|it| u64::from(it.id()) == id).unwrap();
            assert_eq!(offset, next, "{name}");
            let rows: u64 = shape[1..].iter().product();
            next = (offset + kind.row_bytes(shape[0]).unwrap() * rows).next_multiple_of(32);
            infos.insert(name.clone(), (kind, (rows * shape[0]) as usize));
            places.insert(name, (offset as usize, shape));
        }
        let first = (bytes.len() - reader.0.len()).next_multiple_of(32);
        places.values_mut().for_each(|(offset, _)| *offset += first);
        File { keys, tensors: infos, places, bytes }
    }

    /// The numbers of a tensor, or of one of its outermost slices.
    pub(super) fn values(&self, name: &str, slice: Option<usize>) -> Vec<f32> {
        let (kind, _) = self.tensors[name];
        let (mut offset, shape) = (self.places[name].0, &self.places[name].1);
        let mut rows: usize = shape[1..].iter().product::<u64>() as usize;
        let row_bytes = kind.row_bytes(shape[0]).unwrap() as usize;
        if let Some(slice) = slice {
            rows = shape[1] as usize;
            offset += slice * rows * row_bytes;
        }
        let bytes = &self.bytes[offset..][..rows * row_bytes];
        let float = match kind {
            GgufType::F32 => FloatType::F32,
            GgufType::F16 => FloatType::F16,
            GgufType::BF16 => FloatType::BF16,
            GgufType::Q8_0 => return bytes.chunks(34).flat_map(q8_0).collect(),
            GgufType::Q4_0 => return bytes.chunks(18).flat_map(q4_0).collect(),
            GgufType::Blocks(kind) => {
                // As was compared with the reference where it is decoded.
                let columns = shape[0] as usize;
                let mut values = vec![0.0; rows * columns];
                let parts = [(Dtype::U8, bytes)];
                Encoding::Ggml(kind).decode_rows(RowsAt::start(columns), &parts, &mut values);
                return values;
            }
        };
        let mut values = vec![0.0; bytes.len() / float.bytes()];
        float.widen(bytes, &mut values);
        values
    }
}

fn scale(block: &[u8]) -> f32 {
    let mut scale = [0.0];
    FloatType::F16.widen(&block[..2], &mut scale);
    scale[0]
}

fn q8_0(block: &[u8]) -> Vec<f32> {
    block[2..].iter().map(|code| scale(block) * f32::from(*code as i8)).collect()
}

fn q4_0(block: &[u8]) -> Vec<f32> {
    let low = block[2..].iter().map(|code| code & 15);
    let high = block[2..].iter().map(|code| code >> 4);
    low.chain(high).map(|code| scale(block) * (f32::from(code) - 8.0)).collect()
}
