//! Connections: half-sent ones, idle ones, too many of them, and names that are not the server's.
