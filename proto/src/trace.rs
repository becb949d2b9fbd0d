//! What says to which trace a step belongs.

/// W3C trace context: trace id (16 bytes), parent id (8), flags (1).
pub type TraceContext = [u8; 25];
