//! GEMM and GEMV: products of activations with stored weight matrices. Nearly all the time of a step is spent here.
//!
//! Start at `table`, which has every kernel and says what it takes; `product` is what a kernel offers, `weight` what it
//! reads. A kernel is one file or folder, and one entry.

pub(crate) mod affine;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod case;
pub(crate) mod coded;
pub(crate) mod float;
pub(crate) mod fp8;
#[cfg(target_arch = "x86_64")]
pub(crate) mod panel;
pub(crate) mod product;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod weight;
