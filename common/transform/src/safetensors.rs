//! Safetensors files as they are written: which tensor stands where.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cake_checkpoint::Dtype;
use cake_checkpoint::container::safetensors::writer::{Entry, file_header};

/// The reference implementation pads headers with spaces to a multiple of this.
const PADDING: u64 = 8;

/// A tensor to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorToWrite {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Size in bytes: what type and shape need.
    pub bytes: u64,
}

/// One file: its header, and where each tensor begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLayout {
    /// Its bytes up to the first tensor.
    pub header: Vec<u8>,
    /// First byte of each tensor in the file, in the order in which they were given.
    pub offsets: Vec<u64>,
    /// Its length.
    pub bytes: u64,
}

impl FileLayout {
    /// Lays the tensors out as the reference writer does: wide element types first, then by name. `metadata` is
    /// free text; its `format` is `pt` for most programs, `mlx` for MLX.
    ///
    /// The sizes are those of tensors in files, so that their sum is a length.
    pub fn new(tensors: &[TensorToWrite], metadata: &BTreeMap<String, String>) -> FileLayout {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&index| (Reverse(tensors[index].dtype), &tensors[index].name));
        let entries: Vec<Entry<'_>> = order.iter().map(|&index| tensors[index].entry()).collect();
        let header = file_header(&entries, metadata, PADDING);
        let mut bytes = header.len() as u64;
        let mut offsets = vec![0; tensors.len()];
        for index in order {
            offsets[index] = bytes;
            bytes += tensors[index].bytes;
        }
        FileLayout { header, offsets, bytes }
    }
}

impl TensorToWrite {
    fn entry(&self) -> Entry<'_> {
        let TensorToWrite { name, dtype, shape, bytes } = self;
        Entry { name, dtype: *dtype, shape, bytes: *bytes }
    }
}

/// The index of several files: which tensor is in which, and how many bytes they have in all.
pub(crate) fn index_json(files: &BTreeMap<String, String>, total_bytes: u64) -> Vec<u8> {
    let index = serde_json::json!({
        "metadata": { "total_size": total_bytes },
        "weight_map": files,
    });
    let mut json = serde_json::to_vec_pretty(&index).expect("names and numbers are JSON");
    json.push(b'\n');
    json
}
