//! Everyday situations: somebody mistypes, a member is busy or off, a conversation grows too long.

mod chat;
mod commands;
mod logs;
mod running;
mod settings;

/// How long a command may take.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);
