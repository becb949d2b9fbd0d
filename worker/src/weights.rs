//! Where the weights lie: in the mapped blobs, or in a copy in huge pages where that pays.
//!
//! A mapped blob costs no memory of its own: its pages are clean, and the system drops them under
//! pressure. A copy in huge pages is read somewhat faster on systems where walking the page tables
//! of small pages holds up the memory. [`Placement::choose`] knows when; what it measures it
//! measures once per process.
use std::fmt;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cake_checkpoint::units::format_rate;
use cake_checkpoint::{HUGE_PAGE_BYTES, MappedTensor};

use crate::platform;

/// A copy must be read this much faster (in hundredths) to be made.
const GAIN_PERCENT: f64 = 5.0;
/// Bytes of weights that are read to compare both: far more than caches hold.
const SAMPLE_BYTES: usize = 96 << 20;
/// With fewer bytes of large tensors, caches would decide the comparison.
const MIN_SAMPLE_BYTES: usize = 64 << 20;
/// Each way is timed at least so often, and the best time counts: others use the memory, too.
const MIN_ROUNDS: usize = 4;
/// Enough rounds, or enough time, whichever comes first.
const MAX_ROUNDS: usize = 16;
const MAX_TIME: Duration = Duration::from_millis(100);

/// Where the person wants the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// Used in the mapped blobs, whose pages the system may drop under pressure.
    Map,
    /// Copied into memory of the process, in huge pages where the system gives them.
    Copy,
    /// A copy where huge pages are available and a short measurement says that it pays.
    #[default]
    Auto,
}

/// Speed of both ways (bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    map: f64,
    copy: f64,
}

/// What was chosen, and why. Its text is for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The mapped blobs, as asked.
    MapAsked,
    /// A copy, as asked.
    CopyAsked,
    /// The system gives no huge pages.
    NoHugePages,
    /// The large tensors are too few to compare anything.
    TooSmall,
    /// The offer has no room for one piece twice.
    NoRoom,
    /// A copy is not read enough faster.
    DoesNotPay(Measured),
    /// It is.
    Pays(Measured),
    /// The system gave no memory for the measurement.
    NotMeasured,
}

impl Choice {
    /// Whether the weights are to be copied.
    pub fn copies(&self) -> bool {
        matches!(self, Self::CopyAsked | Self::Pays(_))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.copies() { "copied" } else { "mapped" })?;
        let speeds = |f: &mut fmt::Formatter<'_>, Measured { map, copy }: &Measured| {
            write!(f, ": read at {} mapped, {} copied", format_rate(*map), format_rate(*copy))
        };
        match self {
            Self::MapAsked | Self::CopyAsked => f.write_str(", as asked"),
            Self::NoHugePages => f.write_str(": the system gives no huge pages"),
            Self::TooSmall => f.write_str(": there is little to copy"),
            Self::NoRoom => f.write_str(": the offer has no room to copy in"),
            Self::NotMeasured => f.write_str(": the system gives no memory to measure with"),
            Self::DoesNotPay(measured) | Self::Pays(measured) => speeds(f, measured),
        }
    }
}

/// Decides where weights lie; remembers what it measured.
#[derive(Debug, Default)]
pub struct Placement {
    wanted: Weights,
    measured: OnceLock<Measured>,
}

impl Placement {
    /// Nothing measured yet.
    pub fn new(wanted: Weights) -> Self {
        Self { wanted, measured: OnceLock::new() }
    }

    /// Bytes that copying takes beside the weights, if it was asked for.
    pub fn copy_bytes(&self) -> u64 {
        if self.wanted == Weights::Copy { HUGE_PAGE_BYTES as u64 } else { 0 }
    }

    /// Where `tensors` shall lie, which are mapped and were just read. `room_bytes` is what the offer
    /// leaves beside them before anything else is allocated; the stage computes on `threads`.
    ///
    /// Blocks for up to half a second, the first time it measures.
    pub fn choose<'a>(
        &self,
        tensors: impl Iterator<Item = &'a MappedTensor>,
        room_bytes: u64,
        threads: usize,
    ) -> Choice {
        match self.wanted {
            Weights::Map => return Choice::MapAsked,
            Weights::Copy => return Choice::CopyAsked,
            Weights::Auto => {}
        }
        if !platform::gives_huge_pages() {
            return Choice::NoHugePages;
        }
        if room_bytes < HUGE_PAGE_BYTES as u64 {
            return Choice::NoRoom;
        }
        if let Some(measured) = self.measured.get() {
            return verdict(*measured);
        }
        let Some(sample) = sample(tensors) else { return Choice::TooSmall };
        match measure(&sample, threads) {
            Ok(measured) => verdict(*self.measured.get_or_init(|| measured)),
            Err(_) => Choice::NotMeasured,
        }
    }
}

fn verdict(measured: Measured) -> Choice {
    if measured.copy > measured.map * (1.0 + GAIN_PERCENT / 100.0) {
        Choice::Pays(measured)
    } else {
        Choice::DoesNotPay(measured)
    }
}

/// Large tensors to compare with; `None` if there are too few.
fn sample<'a>(tensors: impl Iterator<Item = &'a MappedTensor>) -> Option<Vec<MappedTensor>> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for tensor in tensors.filter(|tensor| tensor.bytes().len() >= HUGE_PAGE_BYTES) {
        if bytes >= MIN_SAMPLE_BYTES {
            break;
        }
        let with = bytes + tensor.bytes().len();
        if with <= SAMPLE_BYTES || bytes == 0 {
            bytes = with;
            taken.push(tensor.clone());
        }
    }
    (bytes >= MIN_SAMPLE_BYTES).then_some(taken)
}

/// Reads the tensors where they are mapped, then from copies, then where they are mapped again: not
/// turn about, so that none is resident in both places and a load's peak stays what was planned.
fn measure(sample: &[MappedTensor], threads: usize) -> std::io::Result<Measured> {
    let before = best(sample, threads);
    let copies: Vec<_> = sample.iter().map(MappedTensor::to_anonymous).collect::<Result<_, _>>()?;
    let copy = best(&copies, threads);
    drop(copies);
    let map = before.min(best(sample, threads));
    let bytes: usize = sample.iter().map(|tensor| tensor.bytes().len()).sum();
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
    Ok(Measured { map: rate(map), copy: rate(copy) })
}

/// The shortest of several times to read all the tensors.
fn best(tensors: &[MappedTensor], threads: usize) -> Duration {
    let (started, mut best) = (Instant::now(), Duration::MAX);
    for round in 0..MAX_ROUNDS {
        if round >= MIN_ROUNDS && started.elapsed() > MAX_TIME {
            break;
        }
        best = best.min(read(tensors, threads));
    }
    best
}

/// Time to read all the tensors, a part of each by every thread.
fn read(tensors: &[MappedTensor], threads: usize) -> Duration {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..threads.max(1) {
            let own = move || {
                for tensor in tensors {
                    let part = tensor.bytes().len().div_ceil(threads.max(1));
                    black_box(tensor.bytes().chunks(part).nth(index).map(sum));
                }
            };
            if index + 1 == threads.max(1) {
                own(); // The last part here: one thread fewer to start.
            } else {
                scope.spawn(own);
            }
        }
    });
    started.elapsed()
}

/// The sum of the bytes as numbers of 64 bits, modulo 2⁶⁴: as little work as reading them can be.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::Dtype;

    fn tensor(bytes: usize) -> MappedTensor {
        MappedTensor::from_vec(vec![1; bytes], Dtype::U8, vec![bytes as u64])
    }

    fn sampled(sizes: &[usize]) -> Option<Vec<usize>> {
        let tensors: Vec<MappedTensor> = sizes.iter().map(|mib| tensor(mib << 20)).collect();
        let taken = sample(tensors.iter())?;
        Some(taken.iter().map(|tensor| tensor.bytes().len() >> 20).collect())
    }

    #[test]
    fn what_was_asked_for_is_chosen() {
        let choose = |wanted| Placement::new(wanted).choose([].iter(), 0, 1);
        assert_eq!(choose(Weights::Map), Choice::MapAsked);
        assert_eq!(choose(Weights::Copy), Choice::CopyAsked);
        assert!(!choose(Weights::Auto).copies(), "there is no room");
        assert_eq!(Placement::new(Weights::Copy).copy_bytes(), 2 << 20);
        assert_eq!(Placement::new(Weights::Auto).copy_bytes(), 0);
    }

    #[test]
    fn a_copy_must_pay() {
        let verdict = |copy| verdict(Measured { map: 100.0, copy });
        assert!(!verdict(90.0).copies() && !verdict(104.0).copies());
        assert!(verdict(106.0).copies());
        assert!(verdict(106.0).to_string().starts_with("copied: read at"));
    }

    #[test]
    fn samples_are_large_enough() {
        assert_eq!(sampled(&[1, 30, 1, 30, 30, 30]), Some(vec![30, 30, 30]));
        assert_eq!(sampled(&[30, 90, 34, 30]), Some(vec![30, 34]));
        assert_eq!(sampled(&[120]), Some(vec![120]), "one matrix may be larger");
        assert_eq!(sampled(&[30, 30]), None);
        assert_eq!(sampled(&[1; 100]), None);
    }

    #[test]
    fn both_ways_are_timed_and_remembered() {
        let tensors = [tensor((2 << 20) + 3)];
        for threads in [0, 1, 3] {
            let Measured { map, copy } = measure(&tensors, threads).expect("memory");
            assert!(map.is_finite() && copy.is_finite() && map > 0.0 && copy > 0.0);
        }
        let placement = Placement::new(Weights::Auto);
        let known = Measured { map: 1.0, copy: 2.0 };
        placement.measured.set(known).expect("nothing measured");
        if platform::gives_huge_pages() {
            assert_eq!(placement.choose(tensors.iter(), 2 << 20, 1), Choice::Pays(known));
            assert_eq!(placement.choose(tensors.iter(), 1 << 20, 1), Choice::NoRoom);
        }
    }

    #[test]
    fn sums_every_whole_word() {
        let bytes: Vec<u8> = (0..21).collect();
        let word = |start: u8| (0..8).fold(0, |w, i| w | u64::from(start + i) << (8 * i));
        assert_eq!(sum(&bytes), word(0) + word(8));
    }
}
