//! What devices are called.

/// Name of the master among the devices, which no member has.
pub const LOCAL: &str = "master";
