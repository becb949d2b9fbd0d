//! How fast tensors are read where they are mapped, and from copies. Matrices of numbers are read as a step reads them:
//! in a file they may begin at any byte, where wide vectors reach over two cache lines, which a plain loop over words
//! would not notice. Codes of packed matrices, which mean nothing without their scales, are read by such a loop.
use std::hint::black_box;
use std::time::{Duration, Instant};

use cake_checkpoint::{FloatType, HUGE_PAGE_BYTES, MappedTensor};

use crate::device::cpu::buffer::UninitVec;
use crate::device::cpu::gemm::case::RowClass;
use crate::device::cpu::gemm::table::choose;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Matrix, Weight};
use crate::device::cpu::isa::prefetch::CACHE_LINE;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::run_all;
use crate::options::Numerics;

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

/// What decides how tensors are read: what is measured of some holds for others of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    float: Option<FloatType>,
    /// Whether all begin with a cache line.
    aligned: bool,
}

impl Kind {
    /// Of a sample, which is mostly of one type.
    pub(super) fn of(sample: &[MappedTensor]) -> Kind {
        let longest = sample.iter().max_by_key(|tensor| tensor.bytes().len());
        let is_aligned = |it: &MappedTensor| it.bytes().as_ptr().addr().is_multiple_of(CACHE_LINE);
        Kind {
            float: longest.and_then(|tensor| FloatType::of(tensor.dtype())),
            aligned: sample.iter().all(is_aligned),
        }
    }
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
    let best = |tensors: &[MappedTensor]| best(tensors, threads);
    let before = best(sample);
    let copies: Vec<_> = sample.iter().map(MappedTensor::to_anonymous).collect::<Result<_, _>>()?;
    let copy = best(&copies);
    drop(copies);
    let map = before.min(best(sample));
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
        best = best.min(read(tensors, threads, Numerics::Fast));
    }
    best
}

/// Time to read all the tensors, a part of each by every thread, as the GEMV of these numerics does.
pub(super) fn read(tensors: &[MappedTensor], threads: usize, numerics: Numerics) -> Duration {
    let threads = threads.max(1);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..threads {
            let own = move || {
                let part = |tensor| read_part(tensor, index, threads, numerics);
                tensors.iter().map(part).sum::<usize>()
            };
            if index + 1 == threads {
                own(); // The last part here: one thread fewer to start.
            } else {
                scope.spawn(own);
            }
        }
    });
    started.elapsed()
}

/// Reads one of `parts` of a tensor: a GEMV with a matrix of numbers; of anything else, adds up the words.
/// Returns how many bytes the part has.
fn read_part(tensor: &MappedTensor, index: usize, parts: usize, numerics: Numerics) -> usize {
    let columns = tensor.shape().last().map_or(0, |&columns| columns as usize);
    let float = FloatType::of(tensor.dtype()).filter(|_| tensor.shape().len() == 2 && columns > 0);
    let row_bytes = float.map_or(1, |float| columns * float.bytes());
    let part_bytes = (tensor.bytes().len() / row_bytes).div_ceil(parts) * row_bytes;
    let Some(bytes) = tensor.bytes().chunks(part_bytes.max(1)).nth(index) else { return 0 };
    let Some(float) = float else {
        black_box(sum(bytes));
        return bytes.len();
    };
    let matrix = Matrix { bytes, float, inputs: columns };
    let (tier, weight) = (Tier::detect(), Weight::Float(matrix));
    let kernel = choose(tier, weight.kind(), RowClass::Decode, numerics);
    let row = vec![0.01; columns];
    let row = kernel.prepare(tier, &weight, &row);
    let mut product = UninitVec::<f32>::new(matrix.outputs());
    let target = Target::new(product.uninit(), 1, matrix.outputs());
    run_all(&[kernel.tasks(tier, weight, None, &row, target)]);
    black_box(&mut product);
    bytes.len()
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
    fn the_parts_of_a_tensor_are_whole_rows_and_all_of_it() {
        let tensor = |dtype: Dtype, shape: Vec<u64>| {
            let bytes = dtype.tensor_bytes(&shape).unwrap();
            MappedTensor::from_vec(vec![0; bytes as usize], dtype, shape)
        };
        for (dtype, shape, row_bytes) in [
            (Dtype::BF16, vec![5, 3], 6),
            (Dtype::F32, vec![1, 64], 256),
            (Dtype::BF16, vec![300, 256], 512),
            (Dtype::BF16, vec![7], 1),
            (Dtype::U32, vec![3, 5], 1),
            (Dtype::F16, vec![4, 0], 1),
        ] {
            let tensor = tensor(dtype, shape);
            for parts in [1, 2, 7] {
                let read: Vec<usize> = (0..parts)
                    .map(|index| read_part(&tensor, index, parts, Numerics::Fast))
                    .collect();
                assert_eq!(read.iter().sum::<usize>(), tensor.bytes().len(), "{parts} parts");
                assert!(read.iter().all(|bytes| bytes % row_bytes == 0), "{read:?}");
            }
        }
    }

    #[test]
    fn sums_every_whole_word() {
        let bytes: Vec<u8> = (0..21).collect();
        let word = |start: u8| (0..8).fold(0, |w, i| w | u64::from(start + i) << (8 * i));
        assert_eq!(sum(&bytes), word(0) + word(8));
    }
}
