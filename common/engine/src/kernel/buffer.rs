//! Room for results.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// A number all of whose bits may have any value.
pub(crate) trait Number: Copy + Default {
    /// Stands out among what is computed.
    const POISON: Self;
}

impl Number for f32 {
    const POISON: f32 = f32::NAN;
}

impl Number for i8 {
    const POISON: i8 = i8::MIN;
}

impl Number for i16 {
    const POISON: i16 = i16::MIN;
}

/// The first `len` of what a thread keeps, whatever they hold; new ones are `value`. Takes no more
/// memory than it must, since that is planned.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no tiles"))]
pub(super) fn kept<T: Clone>(all: &mut Vec<T>, len: usize, value: T) -> &mut [T] {
    if let Some(more) = len.checked_sub(all.len()) {
        all.reserve_exact(more);
        all.resize(len, value);
    }
    &mut all[..len]
}

/// `len` numbers that are whatever the memory holds, for results of which every element gets
/// written: setting those of a prompt to zero first took a tenth of its time.
///
/// With debug assertions they are poison, so that tests find what was not written.
pub(crate) fn unset<T: Number>(len: usize) -> Vec<T> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if !cfg!(debug_assertions) {
        let mut numbers = Vec::<T>::with_capacity(len);
        // SAFETY: nothing happens here. But the compiler has to expect that the numbers are
        // written, so it takes what the memory holds for their values, and those are valid
        // whatever they are.
        unsafe {
            asm!("/* {0} */", in(reg) numbers.as_mut_ptr(), options(nostack, preserves_flags));
            numbers.set_len(len);
        }
        return numbers;
    }
    vec![if cfg!(debug_assertions) { T::POISON } else { T::default() }; len]
}
