//! Prompts: endless ones, ones that pretend to be control tokens, and templates that never end.
