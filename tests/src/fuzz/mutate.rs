//! Inputs made from others, the same ones for the same seed.

/// Longest input.
const LONGEST: usize = 4096;
/// Numbers that break things.
const ODD: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];
/// Words that mean something in one of the formats.
const WORDS: [&[u8]; 14] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b",",
    b":",
    b"null",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"data_offsets",
    b"\\u0000",
    b"cake1-",
];

/// Makes inputs.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// From these, which must be some.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        assert!(!seeds.is_empty(), "something to begin with");
        Self { state: seed | 1, seeds }
    }

    /// Another input: one of the first ones, changed in a few places.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = self.pick();
        for _ in 0..=self.below(6) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn pick(&mut self) -> Vec<u8> {
        let index = self.below(self.seeds.len());
        self.seeds[index].clone()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(32)).min(input.len());
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.next() as u8,
            2 => input.truncate(at),
            3 => drop(input.drain(at.min(end)..end)),
            4 => {
                let piece = input[at.min(end)..end].to_vec();
                let copies = 1 + self.below(40);
                input.splice(at..at, piece.repeat(copies));
            }
            5 => {
                let word = WORDS[self.below(WORDS.len())];
                input.splice(at..at, word.iter().copied());
            }
            6 => {
                // In place of as many bytes, in either order.
                let number = ODD[self.below(ODD.len())];
                let bytes =
                    if self.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
                for (to, from) in input[at..].iter_mut().zip(bytes) {
                    *to = from;
                }
            }
            7 => {
                // The beginning of this one, the end of another.
                let other = self.pick();
                let from = self.below(other.len() + 1);
                input.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let byte = self.next() as u8;
                input.insert(at, byte);
            }
        }
    }

    /// xorshift64*, by Vigna (arXiv:1402.6246).
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
