//! Conversations in a terminal.
