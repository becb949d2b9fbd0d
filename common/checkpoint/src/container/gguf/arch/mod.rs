//! The architectures of GGUF files that run: of each what the configuration of the same model on the Hub says, and what its
//! tensors are called there. A file or a row for each, and a line in `list.rs`; families know nothing of it.

mod config;
mod deepseek;
mod gemma;
mod glm;
mod gpt_oss;
mod granite;
mod keys;
mod lfm;
mod list;
mod llama;
mod mistral;
mod names;
mod phi;
mod qwen;
mod qwen_hybrid;
mod rope;
mod row;

pub(super) use config::config;
pub(super) use list::of;
pub(super) use names::{Owner, place};
pub(super) use rope::{DIVISORS, scaling_of};
pub(super) use row::{Arch, Fields};
