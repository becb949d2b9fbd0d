//! Files made from a golden one, changed in one place: for tests of what must be refused.

use super::tests::golden_gguf;
use crate::catalog::Checkpoint;
use crate::locate::locate_in;

pub(super) const U8: u32 = 0;
pub(super) const U16: u32 = 2;
pub(super) const U32: u32 = 4;
pub(super) const I32: u32 = 5;
pub(super) const F32: u32 = 6;
pub(super) const BOOL: u32 = 7;
pub(super) const TEXT: u32 = 8;
pub(super) const LIST: u32 = 9;
pub(super) const U64: u32 = 10;

/// A tensor as a file lists it, the fastest dimension first.
#[derive(Clone)]
pub(super) struct Info {
    pub(super) name: Vec<u8>,
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
    pub(super) offset: u64,
}

/// A file in its parts.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) magic: [u8; 4],
    pub(super) version: u32,
    /// What the header says of their numbers, where that is not so many.
    pub(super) tensors: Option<u64>,
    pub(super) keys: Option<u64>,
    /// Bytes of a key before all others, and of a tensor instead of the first.
    pub(super) first_key: Option<Vec<u8>>,
    pub(super) first_info: Option<Vec<u8>>,
    pub(super) values: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(super) infos: Vec<Info>,
    pub(super) data: Vec<u8>,
}

pub(super) fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

pub(super) fn list(of: u32, items: &[Vec<u8>]) -> Vec<u8> {
    [&of.to_le_bytes()[..], &(items.len() as u64).to_le_bytes(), &items.concat()].concat()
}

pub(super) fn width(kind: u32) -> usize {
    [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind as usize]
}

impl Made {
    /// The golden file of Llama's.
    pub(super) fn good() -> Made {
        Made::of("llama-q4_0")
    }

    /// A golden file, which is well-formed: what is read of it here is not checked.
    pub(super) fn of(name: &str) -> Made {
        let file = std::fs::read(golden_gguf(name).join("model.gguf")).unwrap();
        let at = &mut 24;
        let mut take = |count: usize| {
            *at += count;
            file[*at - count..*at].to_vec()
        };
        fn number<const N: usize>(bytes: Vec<u8>) -> [u8; N] {
            bytes.try_into().unwrap()
        }
        let [tensors, keys] = [8, 16].map(|at| u64::from_le_bytes(number(file[at..at + 8].into())));
        let mut values = Vec::new();
        for _ in 0..keys {
            let length = u64::from_le_bytes(number(take(8)));
            let key = take(length as usize);
            let kind = u32::from_le_bytes(number(take(4)));
            let mut value = Vec::new();
            let text = |value: &mut Vec<u8>, take: &mut dyn FnMut(usize) -> Vec<u8>| {
                let length = take(8);
                value.extend(&length);
                value.extend(take(u64::from_le_bytes(number(length)) as usize));
            };
            match kind {
                TEXT => text(&mut value, &mut take),
                LIST => {
                    let (of, count) = (take(4), take(8));
                    value.extend([&of[..], &count].concat());
                    let of = u32::from_le_bytes(number(of));
                    for _ in 0..u64::from_le_bytes(number(count)) {
                        match of {
                            TEXT => text(&mut value, &mut take),
                            _ => value.extend(take(width(of))),
                        }
                    }
                }
                _ => value = take(width(kind)),
            }
            values.push((key, kind, value));
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            let length = u64::from_le_bytes(number(take(8)));
            let name = take(length as usize);
            let rank = u32::from_le_bytes(number(take(4)));
            let dims = (0..rank).map(|_| u64::from_le_bytes(number(take(8)))).collect();
            let kind = u32::from_le_bytes(number(take(4)));
            infos.push(Info { name, dims, kind, offset: u64::from_le_bytes(number(take(8))) });
        }
        let data = file[at.next_multiple_of(32)..].to_vec();
        let (magic, version) = (*b"GGUF", 3);
        let (tensors, keys, first_key, first_info) = (None, None, None, None);
        Made { magic, version, tensors, keys, first_key, first_info, values, infos, data }
    }

    pub(super) fn head(&self) -> Vec<u8> {
        let tensors = self.tensors.unwrap_or(self.infos.len() as u64);
        let keys = self.values.len() + self.first_key.iter().len();
        let mut file = [&self.magic[..], &self.version.to_le_bytes()].concat();
        file.extend(
            [tensors, self.keys.unwrap_or(keys as u64)].iter().flat_map(|it| it.to_le_bytes()),
        );
        file.extend(self.first_key.iter().flatten());
        for (key, kind, value) in &self.values {
            file.extend([&text(key)[..], &kind.to_le_bytes(), value].concat());
        }
        for (index, info) in self.infos.iter().enumerate() {
            if let (0, Some(bytes)) = (index, &self.first_info) {
                file.extend(bytes);
                continue;
            }
            file.extend([&text(&info.name)[..], &(info.dims.len() as u32).to_le_bytes()].concat());
            file.extend(info.dims.iter().flat_map(|it| it.to_le_bytes()));
            file.extend([&info.kind.to_le_bytes()[..], &info.offset.to_le_bytes()].concat());
        }
        file
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut file = self.head();
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }

    /// With this value under a key, instead of what was there.
    pub(super) fn put(&mut self, key: &str, kind: u32, value: impl AsRef<[u8]>) {
        self.drop(key);
        self.add(key.as_bytes(), kind, value);
    }

    pub(super) fn add(&mut self, key: &[u8], kind: u32, value: impl AsRef<[u8]>) {
        self.values.push((key.to_vec(), kind, value.as_ref().to_vec()));
    }

    pub(super) fn drop(&mut self, key: &str) {
        self.values.retain(|(own, _, _)| own != key.as_bytes());
    }

    pub(super) fn value(&self, key: &str) -> Vec<u8> {
        self.values.iter().find(|(own, _, _)| own == key.as_bytes()).unwrap().2.clone()
    }

    pub(super) fn info(&mut self, name: &str) -> &mut Info {
        self.infos.iter_mut().find(|info| info.name == name.as_bytes()).unwrap()
    }

    pub(super) fn last(&mut self) -> &mut Info {
        self.infos.iter_mut().max_by_key(|info| info.offset).unwrap()
    }

    pub(super) fn split(&mut self, number: u16, count: u16, tensors: i32) {
        self.add(b"split.no", U16, number.to_le_bytes());
        self.add(b"split.count", U16, count.to_le_bytes());
        self.add(b"split.tensors.count", I32, tensors.to_le_bytes());
    }
}

/// Opens the bytes as a file; what is wrong, as a sentence.
pub(super) fn opened(bytes: &[u8]) -> Result<Checkpoint, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made.gguf");
    std::fs::write(&path, bytes).unwrap();
    let location = locate_in(path.to_str().unwrap(), &[]).map_err(|error| error.to_string())?;
    Checkpoint::open_at(location).map_err(|error| error.to_string())
}

#[track_caller]
pub(super) fn refused(name: &str, bytes: &[u8], words: &str) {
    match opened(bytes) {
        Ok(_) => panic!("{name}: opened"),
        Err(error) => assert!(error.contains(words), "{name}: {error}"),
    }
}

/// Each of these changes makes a file that is refused with these words.
pub(super) type Case = (&'static str, fn(&mut Made), &'static str);

#[track_caller]
pub(super) fn all_refused(cases: &[Case]) {
    all_refused_of("llama-q4_0", cases);
}

/// The same of another golden file.
#[track_caller]
pub(super) fn all_refused_of(name: &str, cases: &[Case]) {
    let good = Made::of(name);
    for (name, change, words) in cases {
        let mut made = good.clone();
        change(&mut made);
        refused(name, &made.bytes(), words);
    }
}

/// What is changed of a file, and the change.
type Change<'a> = (&'a str, fn(&mut Made));

#[track_caller]
pub(super) fn all_open(cases: &[Change<'_>]) {
    let good = Made::good();
    for (name, change) in cases {
        let mut made = good.clone();
        change(&mut made);
        if let Err(error) = opened(&made.bytes()) {
            panic!("{name}: {error}");
        }
    }
}

/// A matrix.
pub(super) const Q: &str = "blk.0.attn_q.weight";
