//! Random weights as fast as a disk takes them: one table lookup per element, and no table for a few.
use std::io::{self, Write};

use cake_checkpoint::Dtype;

/// Different weights that a tensor can have: as many as 16 random bits tell apart.
const LEVELS: usize = 1 << 16;

/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// Makes weights. What a tensor gets depends on its name and the seed alone.
pub(super) struct Weights {
    seed: u64,
    table: Option<Table>,
}

/// `LEVELS` evenly spaced numbers: `centre` ± `bound`.
#[derive(Clone, Copy, PartialEq)]
struct Numbers {
    dtype: Dtype,
    centre: f32,
    bound: f32,
}

/// Their encodings.
struct Table {
    numbers: Numbers,
    bytes: Vec<u8>,
}

impl Weights {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, table: None }
    }

    /// Random bytes, with those bits alone that are in `mask`.
    pub(super) fn write_codes(
        &self,
        out: &mut dyn Write,
        name: &str,
        bytes: u64,
        mask: u8,
    ) -> io::Result<()> {
        let mask = u64::from_le_bytes([mask; 8]);
        let mut state = start(self.seed, name);
        write_words::<8>(out, bytes, |word| *word = (next(&mut state) & mask).to_le_bytes())
    }

    /// Uniform in `centre` ± `bound`.
    ///
    /// # Errors
    /// What the system says, and `InvalidInput` for a dtype that weights do not have.
    pub(super) fn write(
        &mut self,
        out: &mut dyn Write,
        name: &str,
        dtype: Dtype,
        elements: u64,
        [centre, bound]: [f32; 2],
    ) -> io::Result<()> {
        let numbers = Numbers { dtype, centre, bound };
        let mut state = start(self.seed, name);
        match dtype {
            Dtype::F32 => self.fill::<4, 16>(out, numbers, elements, &mut state),
            Dtype::F16 | Dtype::BF16 => self.fill::<2, 8>(out, numbers, elements, &mut state),
            _ => {
                let what = format!("weights of {dtype} are not made, only F32, F16 and BF16");
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    /// Writes `elements` of the numbers, of `SIZE` bytes, chosen at random: four, of `FOUR` bytes, by each random word.
    fn fill<const SIZE: usize, const FOUR: usize>(
        &mut self,
        out: &mut dyn Write,
        numbers: Numbers,
        elements: u64,
        state: &mut u64,
    ) -> io::Result<()> {
        let level = |word: u64, lane: usize| (word >> (16 * lane)) as usize % LEVELS;
        let bytes = elements * SIZE as u64;
        if elements < LEVELS as u64 {
            return write_words::<FOUR>(out, bytes, |four| {
                let word = next(state);
                for lane in 0..4 {
                    let entry = numbers.encode(level(word, lane));
                    four[lane * SIZE..][..SIZE].copy_from_slice(&entry[..SIZE]);
                }
            });
        }
        if self.table.as_ref().is_none_or(|table| table.numbers != numbers) {
            let bytes = (0..LEVELS).flat_map(|level| numbers.encode(level).into_iter().take(SIZE));
            self.table = Some(Table { numbers, bytes: bytes.collect() });
        }
        let table = self.table.as_ref().expect("it was made above");
        let (table, _) = table.bytes.as_chunks::<SIZE>();
        write_words::<FOUR>(out, bytes, |four| {
            let word = next(state);
            for lane in 0..4 {
                four[lane * SIZE..][..SIZE].copy_from_slice(&table[level(word, lane)]);
            }
        })
    }
}

impl Numbers {
    /// The number's bytes, which are fewer than four for two of the dtypes.
    fn encode(self, level: usize) -> [u8; 4] {
        let value = self.centre + self.bound * (2.0 * level as f32 / (LEVELS - 1) as f32 - 1.0);
        let bits = match self.dtype {
            Dtype::F32 => value.to_bits(),
            // Upper half of the f32: bf16 rounded towards zero.
            Dtype::BF16 => value.to_bits() >> 16,
            _ => f16_bits(value).into(),
        };
        bits.to_le_bytes()
    }
}

/// Writes `bytes` that `make` makes, `WORD` at a time; of the last ones what is left.
fn write_words<const WORD: usize>(
    out: &mut dyn Write,
    bytes: u64,
    mut make: impl FnMut(&mut [u8; WORD]),
) -> io::Result<()> {
    let mut buffer = vec![0u8; bytes.next_multiple_of(WORD as u64).min(BUFFER as u64) as usize];
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(BUFFER as u64) as usize;
        for word in buffer[..piece.next_multiple_of(WORD)].as_chunks_mut::<WORD>().0 {
            make(word);
        }
        out.write_all(&buffer[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}

/// xorshift64 (Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// f16 towards zero, of a number that is small and not tiny: others become 0.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if !(1..31).contains(&exponent) {
        return sign;
    }
    sign | (exponent as u16) << 10 | (bits >> 13) as u16 & 0x3ff
}

/// Never 0, which xorshift would stay at.
fn start(seed: u64, name: &str) -> u64 {
    let digest = blake3::hash(format!("{seed}/{name}").as_bytes());
    let word = digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    u64::from_le_bytes(*word) | 1
}

#[cfg(test)]
mod tests {
    use super::{LEVELS, Weights, f16_bits};
    use cake_checkpoint::Dtype;

    #[test]
    fn a_few_are_the_first_of_many() {
        for (dtype, size) in [(Dtype::F32, 4), (Dtype::F16, 2), (Dtype::BF16, 2)] {
            let made = |elements: usize| {
                let mut bytes = Vec::new();
                let mut weights = Weights::new(7);
                weights.write(&mut bytes, "name", dtype, elements as u64, [1.0, 0.5]).unwrap();
                assert_eq!(bytes.len(), elements * size);
                bytes
            };
            let (few, many) = (made(LEVELS - 1), made(LEVELS + 3));
            assert_eq!(few, many[..few.len()]);
            assert_ne!(few[..size], few[size..][..size], "one number for all");
        }
    }

    #[test]
    fn f16_keeps_sign_exponent_and_the_upper_fraction() {
        assert_eq!(f16_bits(1.0), 0x3c00);
        assert_eq!(f16_bits(-0.125), 0xb000);
        assert_eq!(f16_bits(1.0 + 1.0 / 1024.0), 0x3c01);
        assert_eq!(f16_bits(1e-9), 0);
    }
}
