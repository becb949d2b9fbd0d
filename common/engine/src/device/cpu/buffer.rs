//! Uninitialised buffers for results, and buffers that threads keep.

use std::mem::{ManuallyDrop, MaybeUninit};

/// A number all of whose bits may have any value.
pub(crate) trait Number: Copy {
    /// What debug builds fill buffers with: a value that stands out where an element was not written.
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

impl Number for u32 {
    const POISON: u32 = 0x8080_8080;
}

/// The first `len` elements of a buffer that a thread keeps, whatever they hold; new ones are `value`. The buffer takes
/// no more memory than it must, since that is planned.
pub(super) fn kept<T: Clone>(all: &mut Vec<T>, len: usize, value: T) -> &mut [T] {
    if let Some(more) = len.checked_sub(all.len()) {
        all.reserve_exact(more);
        all.resize(len, value);
    }
    &mut all[..len]
}

/// Uninitialised numbers, which get written before anybody reads them.
pub(crate) type Uninit<T = f32> = [MaybeUninit<T>];

/// An uninitialised buffer for results, of which every element gets written: setting those of a prompt to zero first
/// took a tenth of its time.
///
/// With debug assertions all elements are poison at first, so that tests find what was not written; Miri knows by itself.
pub(crate) struct UninitVec<T>(Vec<MaybeUninit<T>>);

impl<T: Number> UninitVec<T> {
    /// A buffer for `len` numbers.
    pub(crate) fn new(len: usize) -> UninitVec<T> {
        let mut numbers = Vec::with_capacity(len);
        // SAFETY: there is room for as many, and what may be uninitialised need not be initialised.
        unsafe { numbers.set_len(len) };
        if cfg!(debug_assertions) && !cfg!(miri) {
            numbers.fill(MaybeUninit::new(T::POISON));
        }
        UninitVec(numbers)
    }

    /// The numbers, still uninitialised, to be written.
    pub(crate) fn uninit(&mut self) -> &mut Uninit<T> {
        &mut self.0
    }

    /// The numbers.
    ///
    /// # Safety
    /// Every one of them was written.
    pub(crate) unsafe fn assume_init(self) -> Vec<T> {
        let mut uninit = ManuallyDrop::new(self.0);
        let (start, len, capacity) = (uninit.as_mut_ptr(), uninit.len(), uninit.capacity());
        // SAFETY: these are the parts of a vector that nobody else has, whose elements are laid out as numbers
        // are and, by the caller's promise, are such.
        unsafe { Vec::from_raw_parts(start.cast(), len, capacity) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_what_is_read() {
        for len in [0, 1, 1000] {
            let mut room = UninitVec::<i16>::new(len);
            assert_eq!(room.uninit().len(), len);
            for (index, place) in room.uninit().iter_mut().enumerate() {
                place.write(index as i16);
            }
            // SAFETY: all of them were written by the loop above.
            let numbers = unsafe { room.assume_init() };
            assert_eq!(numbers, (0..len as i16).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_buffer_that_nobody_writes_to_is_freed() {
        let mut room = UninitVec::<f32>::new(1000);
        room.uninit()[3].write(1.0);
        drop(room); // As after a panic of a kernel. Miri would say that it leaks, or that something is read.
    }

    #[test]
    fn what_is_kept_grows_and_stays() {
        let mut all = Vec::new();
        kept(&mut all, 3, 7).copy_from_slice(&[1, 2, 3]);
        assert_eq!(kept(&mut all, 2, 0), [1, 2]);
        assert_eq!(kept(&mut all, 4, 9), [1, 2, 3, 9]);
    }
}
