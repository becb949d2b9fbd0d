//! How fast tensors are read where they are mapped, and from copies.
use std::hint::black_box;
use std::time::{Duration, Instant};

use cake_checkpoint::{HUGE_PAGE_BYTES, MappedTensor};

/// Bytes of weights that are read to compare both, if there are as many: more than the caches of servers keep of
/// what is read again and again. With a fifth of this, a cache of 480 MiB read small pages and huge ones alike.
const SAMPLE_BYTES: usize = 512 << 20;
/// With fewer bytes of large tensors, caches would decide the comparison.
const MIN_SAMPLE_BYTES: usize = 64 << 20;
/// Each way is timed at least so often, and the best time counts: others use the memory, too.
const MIN_ROUNDS: usize = 2;
/// Enough rounds, or enough time, whichever comes first.
const MAX_ROUNDS: usize = 16;
const MAX_TIME: Duration = Duration::from_millis(100);

/// Speed of both ways (bytes per second).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub(super) map: f64,
    pub(super) copy: f64,
}

/// Large tensors to compare with, from all over: some parts of a file may lie in huge pages already. `None` if there
/// are too few.
pub(super) fn sample<'a>(
    tensors: impl Iterator<Item = &'a MappedTensor>,
) -> Option<Vec<MappedTensor>> {
    let large = tensors.filter(|tensor| tensor.bytes().len() >= HUGE_PAGE_BYTES);
    let large: Vec<&MappedTensor> = large.collect();
    let sizes: Vec<usize> = large.iter().map(|tensor| tensor.bytes().len()).collect();
    if sizes.iter().sum::<usize>() < MIN_SAMPLE_BYTES {
        return None;
    }
    Some(spread(&sizes, SAMPLE_BYTES).into_iter().map(|index| large[index].clone()).collect())
}

/// Which of things of these sizes have so many bytes, and one more thing at most: from all over, and of whatever
/// repeats about its share. All of them if they have no more.
fn spread(sizes: &[usize], bytes: usize) -> Vec<usize> {
    /// 2³² divided by the golden ratio: of its multiples, those that follow each other are never near each other
    /// (Knuth, The Art of Computer Programming, 6.4).
    const STRIDE: u32 = 0x9e37_79b9;
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| (*index as u32).wrapping_mul(STRIDE));
    let mut taken = 0;
    let mut spread: Vec<usize> = order
        .into_iter()
        .take_while(|index| {
            let takes = taken < bytes;
            taken += sizes[*index];
            takes
        })
        .collect();
    spread.sort_unstable();
    spread
}

/// Reads the tensors where they are mapped, then from copies, then where they are mapped again: not
/// turn about, so that none is resident in both places and a load's peak stays what was planned.
pub(super) fn measure(sample: &[MappedTensor], threads: usize) -> std::io::Result<Measured> {
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
    use cake_checkpoint::Dtype;

    use super::*;

    fn tensor(bytes: usize) -> MappedTensor {
        MappedTensor::from_vec(vec![1; bytes], Dtype::U8, vec![bytes as u64])
    }

    #[test]
    fn samples_are_large_and_from_all_over() {
        let sampled = |sizes: &[usize]| {
            let tensors: Vec<MappedTensor> = sizes.iter().map(|mib| tensor(mib << 20)).collect();
            let taken = sample(tensors.iter())?;
            Some(taken.iter().map(|tensor| tensor.bytes().len() >> 20).collect::<Vec<_>>())
        };
        assert_eq!(sampled(&[1, 30, 1, 34]), Some(vec![30, 34]));
        assert_eq!(sampled(&[30, 30]), None);
        assert_eq!(sampled(&[1; 100]), None);
        let many: Vec<MappedTensor> = vec![tensor(64 << 20); 20]; // The same memory again and again.
        assert_eq!(sample(many.iter()).map(|taken| taken.len()), Some(8));
    }

    #[test]
    fn a_spread_has_the_bytes_and_some_of_whatever_repeats() {
        assert_eq!(spread(&[3, 1, 2], 6), [0, 1, 2]);
        assert_eq!(spread(&[], 6), Vec::<usize>::new());
        assert_eq!(spread(&[9], 1), [0]);
        let layer = [8, 2, 2, 8, 28, 28, 28];
        for (layers, share) in [(16, 4), (32, 4), (32, 7), (80, 20)] {
            let sizes = layer.repeat(layers);
            let bytes = sizes.iter().sum::<usize>() / share;
            let spread = spread(&sizes, bytes);
            let taken: usize = spread.iter().map(|index| sizes[*index]).sum();
            assert!((bytes..bytes + 28).contains(&taken), "{taken} of {bytes}");
            for part in 0..layer.len() {
                let alike = spread.iter().filter(|index| *index % layer.len() == part).count();
                let expected = (layers / share / 2).max(1)..=2 * layers.div_ceil(share);
                assert!(expected.contains(&alike), "{alike} of part {part}, not {expected:?}");
            }
            for half in [0..sizes.len() / 2, sizes.len() / 2..sizes.len()] {
                let there = spread.iter().filter(|index| half.contains(index)).count();
                assert!(there.abs_diff(spread.len() / 2) <= 2, "{there} in {half:?}");
            }
        }
    }

    #[test]
    fn both_ways_are_timed() {
        let tensors = [tensor((2 << 20) + 3)];
        for threads in [0, 1, 3] {
            let Measured { map, copy } = measure(&tensors, threads).expect("memory");
            assert!(map.is_finite() && copy.is_finite() && map > 0.0 && copy > 0.0);
        }
    }

    #[test]
    fn sums_every_whole_word() {
        let bytes: Vec<u8> = (0..21).collect();
        let word = |start: u8| (0..8).fold(0, |w, i| w | u64::from(start + i) << (8 * i));
        assert_eq!(sum(&bytes), word(0) + word(8));
    }
}
