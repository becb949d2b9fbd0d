//! Labels of what is counted.

/// One label with its value.
pub(super) type Label = [(&'static str, String); 1];
