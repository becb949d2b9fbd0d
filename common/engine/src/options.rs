//! How a stage is to be run: what a worker or the master chooses, as opposed to what the model says.

use std::fmt;
use std::str::FromStr;

use cake_checkpoint::{Affine, Dtype, KvDtype};

use crate::device::cpu::pool::Pool;
use crate::error::Error;

/// Positions in one KV block unless told otherwise: small enough to waste little at the end of a
/// sequence, large enough for block lists to stay short.
pub const BLOCK_POSITIONS: usize = 16;

/// Whose operations do the arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ops {
    /// Our kernels, on weights as they are stored.
    #[default]
    Cake,
    /// Candle's own operations on weights widened to f32: slow, large and readable, the reference
    /// that our kernels are tested against.
    Candle,
}

impl Ops {
    /// What the environment variable `CAKE_OPS` says: `candle`, or `cake`, empty or absent.
    ///
    /// # Errors
    /// [`Error::UnknownOps`] for any other value.
    pub fn from_env() -> Result<Ops, Error> {
        match std::env::var_os("CAKE_OPS") {
            None => Ok(Ops::Cake),
            Some(value) => Ops::parse(&value.to_string_lossy()),
        }
    }

    fn parse(value: &str) -> Result<Ops, Error> {
        match value {
            "" | "cake" => Ok(Ops::Cake),
            "candle" => Ok(Ops::Candle),
            _ => Err(Error::UnknownOps { found: value.to_owned() }),
        }
    }
}

/// How the matrices of a layer are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightEncoding {
    /// As numbers of this type.
    Float(Dtype),
    /// Packed; scales and biases have 2 bytes each.
    Affine(Affine),
}

impl fmt::Display for WeightEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightEncoding::Float(dtype) => f.pad(dtype.name()),
            WeightEncoding::Affine(format) => {
                f.pad(&format!("affine-{}-{}", format.bits(), format.group()))
            }
        }
    }
}

impl FromStr for WeightEncoding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let affine = || {
            let (bits, group) = text.strip_prefix("affine-")?.split_once('-')?;
            Affine::new(bits.parse().ok()?, group.parse().ok()?).map(WeightEncoding::Affine)
        };
        let float = || Dtype::parse(text).map(WeightEncoding::Float);
        let unknown = || Error::UnknownEncoding { found: text.to_owned() };
        float().or_else(affine).ok_or_else(unknown)
    }
}

/// How exactly products with weights are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// Activations stay f32.
    Exact,
    /// With quantized weights, activations are rounded to 16 bits, group by group: several times as
    /// fast, and off by no more than one part in 65,278 of the largest of the group. With bf16
    /// weights, rows of a prompt are rounded where the processor multiplies pairs of bf16: to bf16 in
    /// the MLP, off by one part in 2^8 at most, and to the sum of two in attention, off by one in 2^17;
    /// so are generated rows on processors with tile registers.
    #[default]
    Fast,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Numerics::Exact => "exact",
            Numerics::Fast => "fast",
        })
    }
}

impl FromStr for Numerics {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "exact" => Ok(Numerics::Exact),
            "fast" => Ok(Numerics::Fast),
            _ => Err(Error::UnknownNumerics { found: text.to_owned() }),
        }
    }
}

/// How a [`Stage`](crate::Stage) or a [`Head`](crate::Head) runs.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Blocks in the pool of every layer; block numbers are below this.
    pub kv_blocks: usize,
    /// Positions in one block.
    pub block_positions: usize,
    /// Positions a sequence may have at most.
    pub max_positions: usize,
    /// Threads for the arithmetic; 0 for as many as [`default_threads`](crate::default_threads).
    pub threads: usize,
    /// Whose operations do the arithmetic.
    pub ops: Ops,
    /// How exactly our operations compute products with weights.
    pub numerics: Numerics,
}

impl EngineOptions {
    /// Options for `kv_blocks` blocks of [`BLOCK_POSITIONS`] positions in f32 and sequences as long
    /// as all of them, on as many threads as by default, with our operations.
    pub fn new(kv_blocks: usize) -> EngineOptions {
        EngineOptions {
            kv: KvDtype::F32,
            kv_blocks,
            block_positions: BLOCK_POSITIONS,
            max_positions: kv_blocks.saturating_mul(BLOCK_POSITIONS),
            threads: 0,
            ops: Ops::Cake,
            numerics: Numerics::Fast,
        }
    }

    /// The threads that the arithmetic runs on.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses one.
    pub(crate) fn thread_pool(&self) -> Result<Pool, Error> {
        Pool::new(self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_encodings_have_names() {
        let affine = Affine::new(4, 128).map(WeightEncoding::Affine).unwrap();
        for encoding in [WeightEncoding::Float(Dtype::BF16), affine] {
            assert_eq!(encoding.to_string().parse::<WeightEncoding>().unwrap(), encoding);
        }
        for text in ["", "affine-3-64", "affine-4", "affine-4-64-1", "B16"] {
            let refused = text.parse::<WeightEncoding>().unwrap_err();
            assert!(matches!(refused, Error::UnknownEncoding { .. }), "{text}");
        }
    }

    #[test]
    fn numerics_are_exact_fast_or_refused() {
        for numerics in [Numerics::Exact, Numerics::Fast] {
            assert_eq!(numerics.to_string().parse::<Numerics>().unwrap(), numerics);
        }
        let refused = "rough".parse::<Numerics>().unwrap_err();
        assert!(matches!(refused, Error::UnknownNumerics { found } if found == "rough"));
    }

    #[test]
    fn ops_are_cake_candle_or_refused() {
        assert_eq!(Ops::parse("").unwrap(), Ops::Cake);
        assert_eq!(Ops::parse("cake").unwrap(), Ops::Cake);
        assert_eq!(Ops::parse("candle").unwrap(), Ops::Candle);
        assert!(matches!(Ops::parse("cuda"), Err(Error::UnknownOps { found }) if found == "cuda"));
    }
}
