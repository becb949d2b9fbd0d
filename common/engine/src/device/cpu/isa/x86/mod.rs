//! The tiers of x86-64.

mod amx;
mod avx2;
mod avx512;
mod line;
pub(crate) mod pairs;
pub(crate) mod tiles;
mod vector;

pub(crate) use self::amx::Amx;
pub(crate) use self::avx2::transposed8;
pub(crate) use self::line::{Line, read_bytes, transposed};
pub(crate) use self::vector::{Avx2, Avx512, Avx512Bf16, Avx512Vnni};
