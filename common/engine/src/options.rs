//! How a stage is to be run: what a worker or the master chooses, as opposed to what the model says.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cake_checkpoint::{Encoding, KvDtype};

use crate::error::Error;
use crate::tally::Tally;

/// Positions in one KV block unless told otherwise: small enough to waste little at the end of a
/// sequence, large enough for block lists to stay short.
pub const BLOCK_POSITIONS: usize = 16;

/// What computes the layers of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// The processor, by our kernels, on weights as they are stored.
    #[default]
    Cpu,
    /// The processor, by candle's own operations on weights as they are stored: slow and readable, the reference that our
    /// kernels are tested against. Builds without the feature `candle` only plan for such devices of others.
    Candle,
    /// The first GPU that CUDA knows, by candle's operations.
    #[cfg(feature = "cuda")]
    Cuda,
    /// The first GPU that Metal knows, by candle's operations.
    #[cfg(feature = "metal")]
    Metal,
}

/// What memory a device computes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceMemory {
    /// The system's, which other programs take of, too.
    System,
    /// Its own. Candle does not tell how much of it is free, and nothing here guesses: people say how much may be taken.
    Own,
}

impl DeviceKind {
    /// Every device that this build has, by the name that `CAKE_DEVICE` knows it by.
    pub const ALL: &[(&str, DeviceKind)] = &[
        ("cpu", DeviceKind::Cpu),
        #[cfg(feature = "candle")]
        ("candle", DeviceKind::Candle),
        #[cfg(feature = "cuda")]
        ("cuda", DeviceKind::Cuda),
        #[cfg(feature = "metal")]
        ("metal", DeviceKind::Metal),
    ];

    /// Its name in [`DeviceKind::ALL`].
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, kind)| *kind == self);
        named.map_or("unnamed", |(name, _)| name)
    }

    /// What the environment variable `CAKE_DEVICE` names: the processor if it is empty or absent.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] for any other value.
    pub fn from_env() -> Result<DeviceKind, Error> {
        Ok(Self::named()?.unwrap_or_default())
    }

    /// As [`DeviceKind::from_env`], but nothing if the variable names none.
    pub(crate) fn named() -> Result<Option<DeviceKind>, Error> {
        let value = std::env::var_os("CAKE_DEVICE").filter(|value| !value.is_empty());
        value.map(|value| DeviceKind::parse(&value.to_string_lossy())).transpose()
    }

    /// The device that takes memory as one of that name does, which may be another build's: all but the processor compute by
    /// candle's operations.
    pub fn alike(name: &str) -> DeviceKind {
        Self::from_name(name).unwrap_or(DeviceKind::Candle)
    }

    /// The device with this name in [`DeviceKind::ALL`].
    pub fn from_name(name: &str) -> Option<DeviceKind> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    fn parse(value: &str) -> Result<DeviceKind, Error> {
        Self::from_name(value).ok_or_else(|| {
            let names: Vec<String> =
                Self::ALL.iter().map(|(name, _)| format!("{name:?}")).collect();
            Error::UnknownDevice { found: value.to_owned(), expected: names.join(" or ") }
        })
    }

    /// Those that compute on the processor.
    #[cfg(test)]
    pub(crate) fn on_processor() -> impl Iterator<Item = DeviceKind> {
        let all = Self::ALL.iter().map(|(_, device)| *device);
        all.filter(|device| device.memory() == DeviceMemory::System)
    }

    /// What memory it computes in.
    pub fn memory(self) -> DeviceMemory {
        match self {
            DeviceKind::Cpu | DeviceKind::Candle => DeviceMemory::System,
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => DeviceMemory::Own,
            #[cfg(feature = "metal")]
            DeviceKind::Metal => DeviceMemory::Own,
        }
    }

    /// Whether the thread that asks for arithmetic does its part of it, and never waits for something else that computes.
    pub(crate) fn is_callers_processor(self) -> bool {
        match self {
            DeviceKind::Cpu => true,
            DeviceKind::Candle => false,
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => false,
            #[cfg(feature = "metal")]
            DeviceKind::Metal => false,
        }
    }

    /// Resident bytes for each thousand stored bytes of matrices in this encoding: weights cost their own bytes, mapped or
    /// with a GPU, where candle leaves room behind blocks.
    pub fn resident_permille(self, encoding: Encoding) -> u32 {
        match (self.memory(), encoding) {
            (DeviceMemory::Own, Encoding::Ggml(_)) => 1005, // 512 weights of at least 100,000.
            _ => 1000,
        }
    }
}

/// How exactly products with weights are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// Activations stay f32.
    Exact,
    /// With quantized weights, activations are rounded to 16 bits, group by group: several times as
    /// fast, and off by no more than one part in 65,278 of the largest of the group; on processors with
    /// tile registers a prompt's rows in the MLP's up and down projections, and these weights, are
    /// rounded to bf16 instead. With bf16 weights, rows of a prompt are rounded where the processor
    /// multiplies pairs of bf16: to bf16 in the MLP, off by one part in 2^8 at most, and to the sum of
    /// two in attention, off by one in 2^17, as are generated rows on processors with tile registers.
    ///
    /// Candle's operations round activations beside GGUF's blocks to 8 bits, in groups of 32 or 256, and nothing else.
    #[default]
    Fast,
    /// As [`Numerics::Fast`], but in MLPs, beside weights whose codes are below 64 as kernels take them, activations are
    /// rounded to 8 bits, off by no more than one part in 254 of the largest of the group. Such are codes of at most 6
    /// bits and E2M1, but not what stands for numbers of 8 bits (IQ4) or is decoded (bitsandbytes, APR, GPTQ with a chosen
    /// order). That is faster on processors with AVX2 or AVX512-VNNI; where `Fast` computes alike, so does this.
    Int8,
}

impl Numerics {
    /// All of them.
    pub const ALL: [Numerics; 3] = [Numerics::Exact, Numerics::Fast, Numerics::Int8];

    /// Whether activations may be rounded.
    pub const fn rounds(self) -> bool {
        !matches!(self, Numerics::Exact)
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Numerics::Exact => "exact",
            Numerics::Fast => "fast",
            Numerics::Int8 => "int8",
        })
    }
}

impl FromStr for Numerics {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Numerics::ALL.into_iter().find(|numerics| numerics.to_string() == text);
        found.ok_or_else(|| Error::UnknownNumerics { found: text.to_owned() })
    }
}

/// How many bits of an activation of a prompt a product takes, where [`Numerics`] let it be rounded and the processor
/// multiplies pairs of bf16; and which products [`Numerics::Int8`] rounds more. A layer's operations say it of each of their
/// matrices; a device may take more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precision {
    /// The activation is rounded to bf16: 8 significant bits.
    Bf16,
    /// The activation is rounded to bf16, and so are packed weights.
    Bf16Both,
    /// The activation is the sum of two bf16: 16 significant bits, in twice the time.
    Bf16x2,
}

impl Precision {
    /// Whether 8 bits of an activation are enough.
    pub(crate) fn is_coarse(self) -> bool {
        self != Precision::Bf16x2
    }

    /// How many bf16 an activation is.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn planes(self) -> usize {
        match self {
            Precision::Bf16 | Precision::Bf16Both => 1,
            Precision::Bf16x2 => 2,
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
    /// Slots for the state of recurrent layers; slot numbers are below this.
    pub state_slots: usize,
    /// Positions a sequence may have at most.
    pub max_positions: usize,
    /// Threads for the arithmetic; 0 for as many as [`default_threads`](crate::default_threads).
    pub threads: usize,
    /// What computes.
    pub device: DeviceKind,
    /// How exactly our kernels compute products with weights.
    pub numerics: Numerics,
    /// Who adds up what linear layers are multiplied with, if anybody does.
    pub tally: Option<Arc<Tally>>,
}

impl EngineOptions {
    /// Options for `kv_blocks` blocks of [`BLOCK_POSITIONS`] positions in f32 and sequences as long
    /// as all of them, on as many threads as by default, on the processor.
    pub fn new(kv_blocks: usize) -> EngineOptions {
        EngineOptions {
            kv: KvDtype::F32,
            kv_blocks,
            block_positions: BLOCK_POSITIONS,
            state_slots: 0,
            max_positions: kv_blocks.saturating_mul(BLOCK_POSITIONS),
            threads: 0,
            device: DeviceKind::Cpu,
            numerics: Numerics::Fast,
            tally: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_known_or_refused() {
        for numerics in Numerics::ALL {
            assert_eq!(numerics.to_string().parse::<Numerics>().unwrap(), numerics);
        }
        let refused = "rough".parse::<Numerics>().unwrap_err();
        assert!(matches!(refused, Error::UnknownNumerics { found } if found == "rough"));
    }

    #[test]
    fn devices_have_names_and_others_are_refused() {
        assert_eq!(DeviceKind::from_name(""), None);
        assert_eq!(DeviceKind::alike("a GPU of another build"), DeviceKind::Candle);
        assert_eq!(DeviceKind::alike("cpu"), DeviceKind::Cpu);
        for (name, kind) in DeviceKind::ALL {
            assert_eq!(DeviceKind::parse(name).unwrap(), *kind);
        }
        let refused = DeviceKind::parse("abacus").unwrap_err().to_string();
        let expected = match cfg!(feature = "candle") {
            true => "CAKE_DEVICE is \"abacus\", expected \"cpu\" or \"candle\"",
            false => "CAKE_DEVICE is \"abacus\", expected \"cpu\"",
        };
        assert!(refused.starts_with(expected), "{refused}");
    }
}
