//! What two checkpoints have in common, and by how much their numbers differ.

use std::collections::BTreeMap;

use cake_checkpoint::{Checkpoint, Encoding};

use crate::error::Error;
use crate::job::Observer;
use crate::numbers::Numbers;
use crate::read::Reader;
use crate::scan::{Scan, scan};
use crate::source::Source;

/// How one checkpoint differs from another.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Difference {
    /// Tensors that only the second has.
    pub added: Vec<String>,
    /// Tensors that only the first has.
    pub removed: Vec<String>,
    /// Tensors that both have and that are not the same, by name.
    pub changed: Vec<Changed>,
    /// How many tensors are the same, as numbers.
    pub equal: usize,
}

/// A tensor that differs.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// What it is in the first: encoding and dimensions.
    pub before: String,
    /// What it is in the second.
    pub after: String,
    /// By how much the numbers differ; `None` if they cannot be compared.
    pub by: Option<By>,
}

/// By how much numbers differ.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct By {
    /// The largest difference of two numbers.
    pub largest: f64,
    /// The mean of all differences, without their sign.
    pub mean: f64,
    /// How many pairs cannot be compared, as only one of the two is a finite number.
    pub odd: u64,
}

/// Compares what two checkpoints mean, tensor by tensor: numbers after decoding. A tensor that is stored in another way but
/// means the same is equal.
///
/// # Errors
/// [`Error::Io`] or [`Error::Shrunk`] for a file that cannot be read, [`Error::Interrupted`]; [`Error::Unsupported`] if only one is
/// in the Hub's form.
pub fn compare(
    before: (&Source, Option<&Checkpoint>),
    after: (&Source, Option<&Checkpoint>),
    threads: usize,
    observer: &dyn Observer,
) -> Result<Difference, Error> {
    // Of two in one form the same rows are compared, whichever that is.
    if before.0.location.container.is_in_hub_form() != after.0.location.container.is_in_hub_form() {
        before.0.refuse_other_form("what is compared with safetensors")?;
        after.0.refuse_other_form("what is compared with safetensors")?;
    }
    let by_name = |(source, checkpoint)| -> BTreeMap<String, Numbers> {
        let all = Numbers::of(source, checkpoint).into_iter();
        all.map(|numbers| (numbers.name.clone(), numbers)).collect()
    };
    let (first, mut second) = (by_name(before), by_name(after));
    let mut difference = Difference::default();
    let mut pairs = Vec::new();
    for (name, numbers) in first {
        match second.remove(&name) {
            None => difference.removed.push(name),
            Some(other) => pairs.push((numbers, other)),
        }
    }
    difference.added.extend(second.into_keys());
    let in_file = |numbers: &Numbers| before.0.tensors[numbers.parts[0]].clone();
    pairs.sort_by_key(|(numbers, _)| (in_file(numbers).file, in_file(numbers).offset));
    let total = pairs.iter().map(|(first, _)| first.bytes(before.0)).sum();
    let found = scan(&pairs, total, threads, observer, |scan, (first, second)| {
        let same_shape = first.shape == second.shape;
        match (first.encoding, second.encoding) {
            (Some(_), Some(_)) if same_shape => numbers(scan, (before.0, first), (after.0, second)),
            (None, None) if same_shape => bytes(scan, (before.0, first), (after.0, second)),
            _ => {
                scan.read(first.bytes(before.0))?;
                Ok(Some(None))
            }
        }
    })?;
    for ((first, second), found) in pairs.iter().zip(found) {
        let Some(by) = found else {
            difference.equal += 1;
            continue;
        };
        let (before, after) = (said(before.0, first), said(after.0, second));
        difference.changed.push(Changed { name: first.name.clone(), before, after, by });
    }
    difference.changed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(difference)
}

/// By how much the numbers of two tensors differ; `None` if by nothing.
fn numbers(
    scan: &Scan<'_>,
    (before, first): (&Source, &Numbers),
    (after, second): (&Source, &Numbers),
) -> Result<Option<Option<By>>, Error> {
    let is_plain = |numbers: &Numbers| matches!(numbers.encoding, Some(Encoding::Float(_)));
    let flat = is_plain(first) && is_plain(second);
    let mut one = Reader::new(before, first, flat)?;
    let mut other = Reader::new(after, second, flat)?;
    let mut sum = Sum::default();
    for range in one.stretches() {
        let bytes = one.bytes(&range);
        sum.add(one.decode(range.clone())?, other.decode(range)?);
        scan.read(bytes)?;
    }
    Ok(sum.by(first.count()).map(Some))
}

/// Whether tensors that are no numbers here have other bytes.
fn bytes(
    scan: &Scan<'_>,
    (before, first): (&Source, &Numbers),
    (after, second): (&Source, &Numbers),
) -> Result<Option<Option<By>>, Error> {
    let (one, other) = (&before.tensors[first.parts[0]], &after.tensors[second.parts[0]]);
    if (one.dtype, one.bytes) != (other.dtype, other.bytes) {
        scan.read(one.bytes)?;
        return Ok(Some(None));
    }
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < one.bytes {
        let piece = (one.bytes - done).min(1 << 20);
        here.resize(piece as usize, 0);
        there.resize(piece as usize, 0);
        before.files[one.file].read_at(one.offset + done, &mut here)?;
        after.files[other.file].read_at(other.offset + done, &mut there)?;
        done += piece;
        scan.read(piece)?;
        if here != there {
            scan.read(one.bytes - done)?;
            return Ok(Some(None));
        }
    }
    Ok(None)
}

/// Encoding, or element type, and dimensions.
fn said(source: &Source, numbers: &Numbers) -> String {
    let dtype = || source.tensors[numbers.parts[0]].dtype.to_string();
    let encoding = numbers.encoding.map_or_else(dtype, |encoding| encoding.to_string());
    format!("{encoding} {:?}", numbers.shape)
}

#[derive(Default)]
struct Sum {
    largest: f64,
    sum: f64,
    odd: u64,
}

impl Sum {
    fn add(&mut self, one: &[f32], other: &[f32]) {
        for (&one, &other) in one.iter().zip(other) {
            let same = one == other || one.is_nan() && other.is_nan();
            let by = (f64::from(one) - f64::from(other)).abs();
            match by.is_finite() {
                _ if same => {}
                true => {
                    self.largest = self.largest.max(by);
                    self.sum += by;
                }
                false => self.odd += 1,
            }
        }
    }

    /// `None` if nothing differs.
    fn by(&self, count: u64) -> Option<By> {
        let By { largest, mean, odd } =
            By { largest: self.largest, mean: self.sum / count.max(1) as f64, odd: self.odd };
        (largest > 0.0 || odd > 0).then_some(By { largest, mean, odd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Options, Target};
    use crate::testing::{Quiet, golden};

    #[test]
    fn a_checkpoint_is_equal_to_itself_however_it_lies_in_files() {
        let home = tempfile::tempdir().unwrap();
        let target = Target::Directory(home.path().join("one"));
        let job = crate::merge(golden("llama-sharded"), target).unwrap();
        job.run(Options { force: false, threads: 2 }, &Quiet).unwrap();
        let merged = Source::open(home.path().join("one").to_str().unwrap()).unwrap();
        let parts = golden("llama-sharded");
        let found = compare((&parts, None), (&merged, None), 2, &Quiet).unwrap();
        let equal = Difference { equal: parts.tensors.len(), ..Difference::default() };
        assert_eq!(found, equal);
    }

    #[test]
    fn other_shapes_cannot_be_compared_and_odd_numbers_are_counted() {
        let (llama, qwen) = (golden("llama"), golden("qwen3"));
        let found = compare((&llama, None), (&qwen, None), 2, &Quiet).unwrap();
        assert!(found.added.iter().any(|name| name.ends_with("q_norm.weight")), "{found:?}");
        let q = "model.layers.0.self_attn.q_proj.weight";
        let q = found.changed.iter().find(|changed| changed.name == q).unwrap();
        assert!(q.before != q.after && q.by.is_none(), "{q:?}");
        let mut sum = Sum::default();
        sum.add(&[1.0, f32::NAN, f32::INFINITY, 2.0], &[1.5, f32::NAN, 1.0, 2.0]);
        assert_eq!(sum.by(4), Some(By { largest: 0.5, mean: 0.125, odd: 1 }));
        assert_eq!(Sum::default().by(4), None);
    }
}
