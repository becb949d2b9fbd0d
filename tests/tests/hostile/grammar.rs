//! Schemas and tools that are made to take the time, the memory or the stack of whoever compiles them.
