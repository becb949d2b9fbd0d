//! A result that several threads fill in, each some columns of some rows.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::device::cpu::buffer::Uninit;

/// `[rows, width]`, row-major: a buffer, or some columns of one.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    start: *mut MaybeUninit<f32>,
    rows: usize,
    width: usize,
    /// Elements from one row to the next.
    stride: usize,
    values: PhantomData<&'a mut Uninit>,
}

// SAFETY: the pointer is used by `part` and `written` alone, whose callers ask for different elements.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// `values`, `[rows, width]`, which nothing else touches as long as this lives.
    ///
    /// # Panics
    /// If `values` has another length.
    pub(crate) fn new(values: &'a mut Uninit, rows: usize, width: usize) -> Target<'a> {
        assert_eq!(values.len(), rows * width, "a buffer of the product's size");
        Target { start: values.as_mut_ptr(), rows, width, stride: width, values: PhantomData }
    }

    /// Some columns of it, as a target of their own.
    ///
    /// # Panics
    /// If there are no such columns.
    pub(crate) fn columns(self, columns: Range<usize>) -> Target<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width, "columns of it");
        Target { start: self.start.wrapping_add(columns.start), width: columns.len(), ..self }
    }

    /// Sets all elements to zero.
    ///
    /// # Safety
    /// No part is alive, on any thread.
    pub(crate) unsafe fn zero(self) {
        for row in 0..self.rows {
            // SAFETY: the caller's promise.
            unsafe { self.part(row, 0, self.width) }.fill(MaybeUninit::new(0.0));
        }
    }

    /// `len` elements of `row` from `column` on.
    ///
    /// # Safety
    /// No other part with one of these elements is alive, on any thread.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, row: usize, column: usize, len: usize) -> &'a mut Uninit {
        assert!(row < self.rows && column <= self.width && len <= self.width - column);
        // SAFETY: inside the values by the line above; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride + column), len) }
    }

    /// As [`Target::part`], of elements that can be read.
    ///
    /// # Safety
    /// As there, and all of the elements were written.
    #[inline(always)]
    pub(crate) unsafe fn written(&self, row: usize, column: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: by the caller's promises, of which the second makes them numbers.
        unsafe { &mut *(std::ptr::from_mut(self.part(row, column, len)) as *mut [f32]) }
    }
}
