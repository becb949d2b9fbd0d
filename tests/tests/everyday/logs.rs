//! What the programs log.
