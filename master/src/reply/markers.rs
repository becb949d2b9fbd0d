//! Texts by which models mark what they write.

/// What a model thinks begins and ends so.
pub(super) const THOUGHTS: &[(&str, &str)] = &[
    ("<think>", "</think>"), // DeepSeek, Qwen, GLM, MiniMax, Kimi, Nemotron, SmolLM
    ("[THINK]", "[/THINK]"), // Mistral
    ("<seed:think>", "</seed:think>"), // Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"), // Cohere
    ("<|inner_prefix|>", INNER_SUFFIX), // Apertus
    BLOCK,
];

/// The same in Gemma 4, which may think anywhere,
pub(crate) const BLOCK: (&str, &str) = ("<|channel>", "<channel|>");
/// and what it writes behind the beginning.
pub(super) const BLOCK_LABEL: &str = "thought\n";
/// What ends Apertus' thoughts, within which it may call tools.
pub(super) const INNER_SUFFIX: &str = "<|inner_suffix|>";

/// Calls begin so, where anything begins them.
pub(super) const CALLS: &[&str] = &[
    "<tool_call>",            // Hermes, Qwen, GLM, Nemotron, Granite
    "[TOOL_CALLS]",           // Mistral
    "<｜tool▁calls▁begin｜>", // DeepSeek
    "<｜tool▁call▁begin｜>",
    "<｜DSML｜function_calls>",
    "<|tool_calls_section_begin|>", // Kimi
    "<|tool_call_begin|>",
    "<minimax:tool_call>",
    "<seed:tool_call>",
    "<function=",
    "<|python_tag|>",      // Llama 3
    "<|tool_call>",        // Gemma 4
    "<|tool_call_start|>", // LFM2.5
    "<|START_ACTION|>",    // Cohere
    TOOLS_PREFIX,
];

/// What stands around and between calls and says nothing.
pub(super) const AROUND_CALLS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<|python_tag|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_call_start|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|tools_suffix|>",
    INNER_SUFFIX,
];

/// What Apertus writes before calls, which have no other form.
pub(super) const TOOLS_PREFIX: &str = "<|tools_prefix|>";
/// What Gemma 4 has around texts.
pub(super) const QUOTE: &str = "<|\"|>";

/// What stands between a tool's name and its arguments.
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";

/// Of models that write in channels (OpenAI's harmony format).
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const START: &str = "<|start|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];

/// What a text of a model marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Marked {
    Thoughts,
    Calls,
    /// Whoever has this one writes in channels.
    Channel,
    /// A part of those, which others have for something else.
    InChannels,
}

/// What a token of this text marks, if anything.
pub(crate) fn marks(token: &str) -> Option<Marked> {
    let is_thought = THOUGHTS.iter().any(|(begin, end)| token == *begin || token == *end);
    let within = [CALL_ID, ARGUMENTS, SEPARATOR, ARGUMENT_BEGIN, QUOTE];
    if is_thought {
        Some(Marked::Thoughts)
    } else if CALLS.contains(&token) || AROUND_CALLS.contains(&token) || within.contains(&token) {
        Some(Marked::Calls)
    } else if token == CHANNEL {
        Some(Marked::Channel)
    } else if [MESSAGE, START, CONSTRAIN].contains(&token) || ENDS.contains(&token) {
        Some(Marked::InChannels)
    } else {
        None
    }
}

/// What ends the thoughts that a prompt has begun for the model, if it has.
pub(crate) fn opened(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    let bare = prompt.strip_suffix(BLOCK_LABEL.trim_end());
    let prompt = bare.filter(|bare| bare.ends_with(BLOCK.0)).unwrap_or(prompt);
    let mut pairs = THOUGHTS.iter();
    pairs.find_map(|(begin, end)| prompt.ends_with(begin).then_some(*end))
}

/// What ends the thoughts that a text has begun and not ended, if it has.
pub(crate) fn unclosed(text: &str) -> Option<&'static str> {
    let mut pairs = THOUGHTS.iter();
    pairs.find_map(|(begin, end)| {
        let (_, thought) = text.rsplit_once(begin)?;
        (!thought.contains(end)).then_some(*end)
    })
}
