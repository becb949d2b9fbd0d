//! The two ways of APR files to store codes. Defined by the crate `apr-format`, whose writers these sentences describe.
//!
//! * `apr-q8`: one scale for the whole matrix, `scale · code`: `P.weight` I8 `[rows, columns]`, `P.scales` F32 `[1]`. In a file
//!   they are one tensor, the scale first.
//! * `apr-q4`: blocks of 32 neighbours, `scale · (code - 8)`, each an f16 scale and 16 bytes, whose lower halves are the even
//!   codes: `P.weight` U8 `[rows, columns / 32 · 18]`.

mod codec;
mod kind;

pub(super) use codec::AprCodec;
pub use kind::AprType;
