//! What the numbers of each tensor are like.

use cake_checkpoint::Checkpoint;

use crate::error::Error;
use crate::job::Observer;
use crate::numbers::Numbers;
use crate::read::Reader;
use crate::scan::scan;
use crate::source::Source;

/// What the numbers of a tensor are like, after decoding.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Stats {
    /// Its name.
    pub name: String,
    /// The smallest finite number.
    pub smallest: f32,
    /// The largest finite number.
    pub largest: f32,
    /// The mean of the finite numbers.
    pub mean: f64,
    /// The root of the mean of their squares.
    pub rms: f64,
    /// How many are zero.
    pub zeros: u64,
    /// How many are infinite or none.
    pub odd: u64,
}

/// Reads all tensors that are numbers, once; the others are passed over.
///
/// # Errors
/// [`Error::Io`] or [`Error::Shrunk`] for a file that cannot be read, [`Error::Interrupted`].
pub fn stats(
    source: &Source,
    checkpoint: Option<&Checkpoint>,
    threads: usize,
    observer: &dyn Observer,
) -> Result<Vec<Stats>, Error> {
    let all = Numbers::of(source, checkpoint).into_iter();
    let known: Vec<Numbers> = all.filter(|numbers| numbers.encoding.is_some()).collect();
    let total = known.iter().map(|numbers| numbers.bytes(source)).sum();
    scan(&known, total, threads, observer, |scan, numbers| {
        let mut reader = Reader::new(source, numbers, true)?;
        let mut sums = Sums::default();
        for range in reader.stretches() {
            let bytes = reader.bytes(&range);
            sums.add(reader.decode(range)?);
            scan.read(bytes)?;
        }
        Ok(sums.stats(numbers))
    })
}

struct Sums {
    smallest: f32,
    largest: f32,
    sum: f64,
    squares: f64,
    zeros: u64,
    odd: u64,
}

impl Default for Sums {
    fn default() -> Sums {
        let (smallest, largest) = (f32::INFINITY, f32::NEG_INFINITY);
        Sums { smallest, largest, sum: 0.0, squares: 0.0, zeros: 0, odd: 0 }
    }
}

impl Sums {
    fn add(&mut self, numbers: &[f32]) {
        for &number in numbers {
            if !number.is_finite() {
                self.odd += 1;
                continue;
            }
            self.smallest = self.smallest.min(number);
            self.largest = self.largest.max(number);
            self.sum += f64::from(number);
            self.squares += f64::from(number) * f64::from(number);
            self.zeros += u64::from(number == 0.0);
        }
    }

    fn stats(self, numbers: &Numbers) -> Stats {
        let finite = numbers.count() - self.odd;
        let (smallest, largest) =
            if finite == 0 { (0.0, 0.0) } else { (self.smallest, self.largest) };
        let count = finite.max(1) as f64;
        Stats {
            name: numbers.name.clone(),
            smallest,
            largest,
            mean: self.sum / count,
            rms: (self.squares / count).sqrt(),
            zeros: self.zeros,
            odd: self.odd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Quiet, golden};

    #[test]
    fn stats_are_those_of_the_numbers() {
        let source = golden("llama");
        let found = stats(&source, None, 2, &Quiet).unwrap();
        assert_eq!(found.len(), source.tensors.len());
        let norm = found.iter().find(|stats| stats.name == "model.norm.weight").unwrap();
        let tensor = source.tensors.iter().find(|tensor| tensor.name == norm.name).unwrap();
        let mut bytes = vec![0; tensor.bytes as usize];
        source.files[tensor.file].read_at(tensor.offset, &mut bytes).unwrap();
        let mut numbers = vec![0.0; tensor.shape[0] as usize];
        cake_checkpoint::FloatType::of(tensor.dtype).unwrap().widen(&bytes, &mut numbers);
        let mean = numbers.iter().map(|&it| f64::from(it)).sum::<f64>() / numbers.len() as f64;
        assert!((norm.mean - mean).abs() < 1e-12 && norm.odd == 0, "{norm:?}");
        assert_eq!(norm.largest, numbers.iter().copied().fold(f32::MIN, f32::max));
    }

    #[test]
    fn packed_weights_are_looked_at_as_what_they_mean() {
        let source = golden("qwen2-mlx4");
        let checkpoint = source.checkpoint().unwrap();
        let found = stats(&source, Some(&checkpoint), 2, &Quiet).unwrap();
        let head = "model.layers.0.mlp.down_proj.weight";
        let stats = found.iter().find(|stats| stats.name == head).unwrap();
        assert!(stats.smallest < 0.0 && stats.largest > 0.0 && stats.rms < 1.0, "{stats:?}");
        assert!(!found.iter().any(|stats| stats.name.ends_with("down_proj.scales")));
    }

    #[test]
    fn what_is_no_number_is_counted_and_not_summed() {
        let mut sums = Sums::default();
        sums.add(&[f32::NAN, 0.0, -2.0, f32::INFINITY, 4.0]);
        assert_eq!((sums.odd, sums.zeros, sums.smallest, sums.largest), (2, 1, -2.0, 4.0));
        assert_eq!(sums.sum, 2.0);
    }
}
