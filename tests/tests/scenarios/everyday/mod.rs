//! Everyday situations: somebody mistypes, a member is busy or off, a conversation grows too long.

mod chat;
mod commands;
mod logs;
