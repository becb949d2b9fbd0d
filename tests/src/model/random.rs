//! Random weights as fast as a disk takes them: one table lookup per element.
use std::io::{self, Write};

use cake_checkpoint::Dtype;

/// Different weights that a tensor can have: as many as 16 random bits tell apart.
const LEVELS: usize = 1 << 16;

/// Makes weights. What a tensor gets depends on its name and the seed alone.
pub(super) struct Weights {
    seed: u64,
    table: Table,
}

/// The encodings of `LEVELS` evenly spaced numbers.
struct Table {
    dtype: Dtype,
    centre: f32,
    bound: f32,
    bytes: Vec<u8>,
}

impl Weights {
    pub(super) fn new(seed: u64) -> Self {
        let none = Table { dtype: Dtype::F32, centre: f32::NAN, bound: f32::NAN, bytes: vec![] };
        Self { seed, table: none }
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
        let mut buffer = vec![0u8; 64 << 10];
        let mut left = bytes;
        while left > 0 {
            for word in buffer.as_chunks_mut::<8>().0 {
                *word = (next(&mut state) & mask).to_le_bytes();
            }
            let piece = left.min(buffer.len() as u64);
            out.write_all(&buffer[..piece as usize])?;
            left -= piece;
        }
        Ok(())
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
        if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let what = format!("weights of {dtype} are not made, only F32, F16 and BF16");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let table = &self.table;
        if (table.dtype, table.centre, table.bound) != (dtype, centre, bound) {
            self.table = Table { dtype, centre, bound, bytes: encode(dtype, centre, bound) };
        }
        let mut state = start(self.seed, name);
        match dtype {
            Dtype::F32 => fill::<4>(out, &self.table.bytes, elements, &mut state),
            _ => fill::<2>(out, &self.table.bytes, elements, &mut state),
        }
    }
}

/// Writes `elements` table entries of `SIZE` bytes, chosen at random.
fn fill<const SIZE: usize>(
    out: &mut dyn Write,
    table: &[u8],
    mut elements: u64,
    state: &mut u64,
) -> io::Result<()> {
    let (table, _) = table.as_chunks::<SIZE>();
    let mut buffer = vec![0u8; 64 << 10];
    let capacity = buffer.len() / SIZE;
    while elements > 0 {
        let count = elements.min(capacity as u64) as usize;
        let (entries, _) = buffer.as_chunks_mut::<SIZE>();
        for four in entries.chunks_mut(4) {
            let word = next(state); // Four indices of 16 bits.
            for (lane, entry) in four.iter_mut().enumerate() {
                *entry = table[(word >> (16 * lane)) as usize % LEVELS];
            }
        }
        out.write_all(&buffer[..count * SIZE])?;
        elements -= count as u64;
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

fn encode(dtype: Dtype, centre: f32, bound: f32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEVELS * 4);
    for level in 0..LEVELS {
        let value = centre + bound * (2.0 * level as f32 / (LEVELS - 1) as f32 - 1.0);
        match dtype {
            Dtype::F32 => bytes.extend(value.to_le_bytes()),
            // Upper half of the f32: bf16 rounded towards zero.
            Dtype::BF16 => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
            _ => bytes.extend(f16_bits(value).to_le_bytes()),
        }
    }
    bytes
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
    use super::f16_bits;

    #[test]
    fn f16_keeps_sign_exponent_and_the_upper_fraction() {
        assert_eq!(f16_bits(1.0), 0x3c00);
        assert_eq!(f16_bits(-0.125), 0xb000);
        assert_eq!(f16_bits(1.0 + 1.0 / 1024.0), 0x3c01);
        assert_eq!(f16_bits(1e-9), 0);
    }
}
