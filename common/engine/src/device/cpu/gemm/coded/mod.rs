//! GEMM and GEMV with matrices whose encoding no kernel of the processor reads as it lies: some outputs at a time are
//! dequantized, or unpacked to codes of a byte, into memory that a thread keeps, and multiplied there by the kernels
//! for numbers or for codes. So an encoding costs no more memory than its bytes, and needs nothing of its own here.

mod decoded;
#[cfg(test)]
mod tests;
mod unpacked;

pub(crate) use decoded::Decoded;
pub(super) use decoded::{TASKS_PER_THREAD, multiplied};
pub(crate) use unpacked::{UNPACKED, Unpacked};
