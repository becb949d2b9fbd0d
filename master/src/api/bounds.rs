//! What OpenAI's requests may say, in one list: each bound is looked at where it is read, and described by the type that has it
//! (`extent`). What another API alone has is in its `wire.rs`.

use super::extent::{Length, Span, Word, Words};
use super::said::MAX_MESSAGES;

/// Answers to one request.
pub(super) const ANSWERS: Span<u64> = Span { low: 1, high: 16 };
/// New tokens that are asked for.
pub(super) const NEW_TOKENS: Span<u64> = Span { low: 1, high: u64::MAX };
/// The same of a completion that repeats its prompt.
pub(super) const ANY_TOKENS: Span<u64> = Span { low: 0, high: u64::MAX };
/// Stop strings, and characters of each.
pub(super) const STOPS: Length = Length::most(16);
pub(super) const STOP: Length = Length::most(1024);
/// Digits of a token's id as a name: no vocabulary has a billion tokens.
pub(super) const ID_DIGITS: Length = Length { least: 1, most: 9 };
/// Tokens with a bias, and what it is.
pub(super) const BIASES: Length = Length::most(1024);
pub(super) const BIAS: Span<f32> = Span { low: -100.0, high: 100.0 };
/// Alternatives to each token.
pub(super) const TOP_LOGPROBS: Span<u64> = Span { low: 0, high: 20 };
pub(super) const TEMPERATURE: Span<f32> = Span { low: 0.0, high: 2.0 };
/// What is a share of all: `top_p` and `min_p`.
pub(super) const SHARE: Span<f32> = Span { low: 0.0, high: 1.0 };
pub(super) const REPETITION: Span<f32> = Span { low: 0.01, high: 100.0 };
/// What is taken from tokens that are there already.
pub(super) const PENALTY: Span<f32> = Span { low: -2.0, high: 2.0 };
/// Messages of a chat. More of them are not read.
pub(super) const MESSAGES: Length = Length { least: 1, most: MAX_MESSAGES };
/// Tools of a request, as OpenAI has it.
pub(super) const TOOLS: Length = Length::most(128);
/// What a template is told in a word.
pub(super) const WORD: Word = Word(64);
/// Characters of a tool's name: OpenAI's are half as long.
pub(super) const TOOL_NAME: Length = Length { least: 1, most: 128 };
/// What tools there are.
pub(super) const TOOL_KINDS: Words = Words(&["function"]);
/// What an answer may be held to.
pub(super) const FORMATS: Words = Words(&["text", "json_object", "json_schema"]);
/// Who may speak. Templates know other roles as well, but to them anybody who may write a role could give
/// any header that the model was trained on.
pub(super) const ROLES: Words =
    Words(&["system", "developer", "user", "assistant", "tool", "function"]);
/// Kinds of parts.
pub(super) const PARTS: Words = Words(&["text"]);
/// Prompts in one request.
pub(super) const PROMPTS: Length = Length { least: 1, most: 64 };
/// The text after an answer, which no answer is written before.
pub(super) const NOTHING: Length = Length::most(0);
/// Texts in one request: as OpenAI has it.
pub(super) const INPUTS: Length = Length { least: 1, most: MAX_LISTED };
/// Most texts, or lists of token ids, that are read of a request. A kind of request may take fewer.
pub(super) const MAX_LISTED: usize = 2048;
/// How a vector is written.
pub(super) const VECTORS: Words = Words(&["float", "base64"]);
