//! Matrices of whole numbers, packed as those who quantize pack them: each code put bit by bit where it belongs.

use serde_json::Value;

use crate::encoding::FloatType;
use crate::testing::{Made as Tensor, TinyCheckpoint, tensors};

/// A matrix as what it means.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) rows: usize,
    pub(super) columns: usize,
    bits: u32,
    group: usize,
    seed: u64,
    /// By row.
    codes: Vec<u32>,
    /// By row and group.
    zeros: Vec<u32>,
    scales: Vec<f32>,
    /// Of each column.
    groups: Vec<usize>,
}

/// Who packed it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// GPTQ, which stores zeros that are so much less.
    Gptq {
        less: u32,
    },
    Awq,
    /// compressed-tensors, with zeros or without.
    Compressed {
        zeros: bool,
    },
}

/// Numbers below `end`.
fn random(seed: u64, count: usize, end: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    (0..count).map(|_| next() % end).collect()
}

impl Made {
    fn new([rows, columns]: [usize; 2], seed: u64) -> Self {
        let (bits, group, groups) = (4, columns, vec![0; columns]);
        let (codes, zeros, scales) = (vec![], vec![], vec![]);
        Made { rows, columns, bits, group, seed, codes, zeros, scales, groups }
    }

    /// Groups of a row.
    pub(super) fn count(&self) -> usize {
        self.columns.div_ceil(self.group)
    }

    /// With codes of so many bits, and scales for so many of them.
    pub(super) fn packed(self, bits: u32, group: Option<u64>) -> Self {
        let group = group.map_or(self.columns, |group| group as usize);
        let seed = self.seed;
        let count = self.rows * self.columns.div_ceil(group);
        let scales = random(seed + 1, count, 15).into_iter().map(|it| (it as f32 + 1.0) / 64.0);
        let (scales, zeros) = (scales.collect(), vec![0; count]);
        let codes = random(seed, self.rows * self.columns, 1 << bits);
        let groups = (0..self.columns).map(|column| column / group).collect();
        Made { bits, group, codes, zeros, scales, groups, ..self }
    }

    /// With zeros from `least` to as much as can be stored.
    pub(super) fn with_zeros_from(mut self, least: u32) -> Self {
        let zeros = random(99, self.zeros.len(), 1 << self.bits);
        self.zeros = zeros.into_iter().map(|zero| zero + least).collect();
        self
    }

    pub(super) fn with_zero(mut self, zero: u32) -> Self {
        self.zeros.fill(zero);
        self
    }

    /// With columns that chose their groups.
    pub(super) fn shuffled(mut self) -> Self {
        let places = random(7, self.columns, u32::MAX);
        let mut order: Vec<usize> = (0..self.columns).collect();
        order.sort_by_key(|column| places[*column]);
        for (place, column) in order.into_iter().enumerate() {
            self.groups[column] = place / self.group;
        }
        self
    }

    /// By the definition, in f64, and then f32, which has them all.
    pub(super) fn weights(&self) -> Vec<f32> {
        let weight = |index: usize| {
            let (row, column) = (index / self.columns, index % self.columns);
            let at = row * self.count() + self.groups[column];
            let distance = f64::from(self.codes[index]) - f64::from(self.zeros[at]);
            (f64::from(self.scales[at]) * distance) as f32
        };
        (0..self.rows * self.columns).map(weight).collect()
    }

    /// Words of 32 bits `[down, right]`: of each, what `put` says for the bits of its places.
    fn words(
        &self,
        [down, right]: [usize; 2],
        code: impl Fn(usize, usize, usize) -> u32,
    ) -> (Vec<u64>, Vec<u8>) {
        let mut bytes = Vec::new();
        for y in 0..down {
            for x in 0..right {
                let places = (0..32 / self.bits)
                    .map(|place| code(y, x, place as usize) << (place * self.bits));
                bytes.extend(places.fold(0, |word, code| word | code).to_le_bytes());
            }
        }
        (vec![down as u64, right as u64], bytes)
    }

    fn code(&self, row: usize, column: usize) -> u32 {
        self.codes[row * self.columns + column]
    }

    fn zero(&self, row: usize, group: usize, less: u32) -> u32 {
        if row < self.rows { self.zeros[row * self.count() + group] - less } else { 0 }
    }

    /// Scales `[rows, groups]`, or turned.
    fn scales(&self, turned: bool, float: FloatType) -> (Vec<u64>, Vec<u8>) {
        let (rows, count) = (self.rows, self.count());
        let (shape, numbers): (_, Vec<f32>) = match turned {
            false => (vec![rows as u64, count as u64], self.scales.clone()),
            true => {
                let at = |index: usize| self.scales[index % rows * count + index / rows];
                (vec![count as u64, rows as u64], (0..rows * count).map(at).collect())
            }
        };
        let mut bytes = vec![0; numbers.len() * float.bytes()];
        float.narrow(&numbers, &mut bytes).unwrap();
        (shape, bytes)
    }

    fn groups(&self) -> (Vec<u64>, Vec<u8>) {
        let bytes = self.groups.iter().flat_map(|group| (*group as i32).to_le_bytes());
        (vec![self.columns as u64], bytes.collect())
    }

    /// The tensors of a module.
    pub(super) fn tensors(&self, module: &str, way: Way) -> Vec<Tensor> {
        let per = (32 / self.bits) as usize;
        let (rows, columns, count) = (self.rows, self.columns, self.count());
        let tensor = |ending: &str, dtype, (shape, bytes)| {
            (format!("{module}.{ending}"), dtype, shape, bytes)
        };
        match way {
            Way::Gptq { less } => vec![
                tensor(
                    "qweight",
                    "I32",
                    self.words([columns / per, rows], |y, x, at| self.code(x, y * per + at)),
                ),
                tensor(
                    "qzeros",
                    "I32",
                    self.words([count, rows / per], |y, x, at| self.zero(x * per + at, y, less)),
                ),
                tensor("scales", "F16", self.scales(true, FloatType::F16)),
                tensor("g_idx", "I32", self.groups()),
            ],
            Way::Awq => {
                const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7]; // Which column a place has.
                vec![
                    tensor(
                        "qweight",
                        "I32",
                        self.words([columns, rows / 8], |y, x, at| self.code(x * 8 + ORDER[at], y)),
                    ),
                    tensor(
                        "qzeros",
                        "I32",
                        self.words([count, rows / 8], |y, x, at| {
                            self.zero(x * 8 + ORDER[at], y, 0)
                        }),
                    ),
                    tensor("scales", "F16", self.scales(true, FloatType::F16)),
                ]
            }
            Way::Compressed { zeros } => {
                let shape = [rows as u64, columns as u64].map(u64::to_le_bytes).concat();
                let mut all = vec![
                    tensor("weight_shape", "I64", (vec![2], shape)),
                    tensor(
                        "weight_packed",
                        "I32",
                        self.words([rows, columns / per], |y, x, at| self.code(y, x * per + at)),
                    ),
                    tensor("weight_scale", "BF16", self.scales(false, FloatType::BF16)),
                ];
                if zeros {
                    let words = self.words([rows.div_ceil(per), count], |y, x, at| {
                        self.zero(y * per + at, x, 0)
                    });
                    all.push(tensor("weight_zero_point", "I32", words));
                }
                if (0..columns).any(|column| self.groups[column] != column / self.group) {
                    all.push(tensor("weight_g_idx", "I32", self.groups()));
                }
                all
            }
        }
    }
}

/// A tiny model of one layer whose matrices were packed that way, and these.
pub(super) fn checkpoint(
    quantization: Value,
    way: Way,
    made: &dyn Fn(Made) -> Made,
) -> (TinyCheckpoint, Vec<(String, Made)>) {
    let mut tiny = TinyCheckpoint::single(1);
    tiny.config["hidden_size"] = 64.into();
    tiny.config["intermediate_size"] = 160.into();
    let all = tensors(&tiny.config);
    tiny.config["quantization_config"] = quantization;
    let (packed, mut file): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(name, _, shape, _)| name.contains(".layers.") && shape.len() == 2);
    let mut matrices = Vec::new();
    for (seed, (name, _, shape, _)) in (5..).zip(packed) {
        let module = name.strip_suffix(".weight").unwrap();
        let made = made(Made::new([shape[0] as usize, shape[1] as usize], seed));
        file.extend(made.tensors(module, way));
        matrices.push((module.to_owned(), made));
    }
    tiny.files.insert("model.safetensors".into(), file);
    (tiny, matrices)
}

/// Bytes that the file has of packed matrices, but for what nobody sends.
pub(super) fn packed_bytes(tiny: &TinyCheckpoint) -> u64 {
    let all = tiny.files.values().flatten();
    let packed = all.filter(|(name, ..)| {
        name.contains("proj") && !name.ends_with("g_idx") && !name.ends_with("weight_shape")
    });
    packed.map(|(_, _, _, bytes)| bytes.len() as u64).sum()
}
